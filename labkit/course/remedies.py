"""What the system refuses, as a sentence with what to do about it. Standard library only: it may
refuse before anything is installed."""

from __future__ import annotations

import errno

REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space (`make clean` removes caches), and try again",
    errno.EDQUOT: "your quota is used up: free some space, and try again",
    errno.EROFS: "this disk is read-only: copy the course to a folder that you can write to",
    errno.ENOENT: "there is none of that name: look with `ls` what it is called",
    errno.EACCES: "you may not read or write it, or its folder: `ls -la` shows whose they are; or"
    " copy the course to a folder of your own",
    errno.EPERM: "the system does not allow it: copy the course to a folder of your own",
    errno.EFBIG: "this system lets no file become so large: `ulimit -f` shows the limit",
    errno.EMFILE: "too many files are open: close other programs, and try again",
    errno.ENFILE: "too many files are open: close other programs, and try again",
    errno.ENOMEM: "no memory is left: close other programs, and try again",
    errno.ENAMETOOLONG: "the path is too long for this system: move the course to a shorter one",
    errno.EISDIR: "a folder stands where a file belongs: rename it or take it away",
    errno.ENOTDIR: "a file stands where a folder belongs: rename it or take it away",
    errno.EEXIST: "a file stands where a folder belongs: rename it or take it away",
    errno.ELOOP: "a link leads back to itself: take it away",
    errno.EIO: "the disk reports a fault: copy your labs to another one",
}


def remedy(error: OSError) -> str:
    """An error of the system as one sentence, with what to do about it, and what is known about it
    in further lines."""
    what = error.strerror or str(error)
    what = f"{error.filename}: {what}" if error.filename else what
    known = REMEDIES.get(error.errno or 0)
    if "temporary directory" in what:  # the system says only that there is no such folder
        known = "free some space there, or let TMPDIR name a folder that you can write to"
    return "\n".join([f"{what}; {known}" if known else what, *getattr(error, "__notes__", ())])
