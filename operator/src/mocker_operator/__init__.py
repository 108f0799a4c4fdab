"""The Kubernetes operator: it turns MockerDeployments into workers and a frontend."""
