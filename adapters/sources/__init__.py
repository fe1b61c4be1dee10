"""What the adapters that read sources share: files, Arrow columns, rows of Python values."""
