"""What users call: Storage, its catalog, cacheable, open. It joins builds and access, and does neither's work."""
