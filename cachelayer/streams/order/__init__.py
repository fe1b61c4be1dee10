"""Orders: which record comes at which place of an epoch. Arithmetic only: nothing here reads records."""
