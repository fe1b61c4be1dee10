"""The provenance of a version: code, arguments and environment, as they are stored and compared later.

::

    account.py            everything that the function refers to, by the way to it
      function_code.py      hashes of code, and the names that it uses
      values.py             what a value holds, as a number or a hash
    stored_values.py      the form in which values are stored, and differences in words
    environment.py        who, where, when, with which libraries and commit

Nothing here touches a store, and nothing of the user is called.
"""
