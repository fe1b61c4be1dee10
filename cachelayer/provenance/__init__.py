"""What made a version: its code, arguments, origin and environment.

Nothing here touches a store.
"""
