"""What made a version: its code, arguments, origin and environment, as they are recorded. Nothing here touches a store."""
