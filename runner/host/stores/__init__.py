"""Object stores (`s3://`, `gs://`, `az://`), in places where a folder may be named.

An object store has no rename, no lock and no folder. What a local folder does with these is done here with conditional
writes (`client.create`) and with one object that is written last.
"""
