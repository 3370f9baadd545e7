"""custom.metrics.k8s.io from the workers' own readings: scrape, aggregate, serve. Its own process, two replicas, no state."""
