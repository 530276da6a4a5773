"""Kubernetes objects, generated: see `deploy.kubernetes.build`."""
