"""``python -m vllm_vitals`` is ``vllm-vitals``."""

from vllm_vitals.cli.main import main

if __name__ == "__main__":
    main()
