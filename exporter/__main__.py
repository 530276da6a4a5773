"""``python -m exporter`` is ``vllm-vitals``."""

from exporter.cli import main

if __name__ == "__main__":
    main()
