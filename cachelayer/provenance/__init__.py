"""The provenance of a version: code, arguments and environment, as they are stored and compared later.

::

    call_arguments.py     the arguments of the function that makes the source
    walker.py             everything that the function refers to, found name by name
      function_code.py      hashes of code, and the names that it uses
      imported_code.py      the code of modules that are imported when the function runs
      values.py             what a value holds, as a number or a hash
    stored_values.py      the form in which values are stored, and differences in words
    environment.py        who, where, when, with which libraries and commit

Nothing here touches a store, and nothing of the user is called.
"""
