"""custom.metrics.k8s.io from the workers' own readings: scrape, aggregate, serve. Own process, stateless replicas."""
