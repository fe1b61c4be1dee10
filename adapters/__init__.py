"""Adapters, one module a framework: only here is a framework imported. Modules that begin with ``_`` are shared.

An object finds its adapter in :mod:`cachelayer.builds.source`, which asks the entry points ``cachelayer.sources``.
"""
