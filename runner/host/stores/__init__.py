"""Object stores (`s3://`, `gs://`, `az://`), in places where a folder may be named.

- `urls`: what a URL may be, and `ObjectPath`, the path of an object; imports nothing else.
- `client`: reads, writes and lists objects, with retries, through obstore.
- `cache`: a local copy of what was read, by its SHA-256, with a bound.

An object store has no rename, no lock and no folder. What a local folder does with these is done here with conditional
writes (`client.create`) and with one object that is written last.
"""
