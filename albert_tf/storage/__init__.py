"""Files on local disks and object stores, progress, and the errors that users see."""
