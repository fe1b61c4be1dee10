"""How a version was made, as it is recorded: code, arguments, origin and environment.

Nothing here touches a store.
"""
