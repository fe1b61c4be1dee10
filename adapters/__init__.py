"""Adapters, one module a framework: only here is a framework imported. Modules that begin with ``_`` are shared."""
