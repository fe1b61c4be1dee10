"""Adapters, one module a framework or file format: only here is a framework imported.

An adapter has one or more of these functions:

=======================  =========================================================================================
``as_source(obj)``       the source of an object of the framework; None for any other. ``cache`` finds it by the
                         entry points ``cachelayer.sources``: see :mod:`cachelayer.builds.as_source`
``from_...(paths)``      the source of files of a format. :mod:`cachelayer.adapters._named_files` finds it by the
                         names of the files
``to_...(ref)``          records or a stream in the form that the framework takes
=======================  =========================================================================================
"""
