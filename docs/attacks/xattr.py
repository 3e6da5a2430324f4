# xattr.py: extended attributes on the sandbox's own file system until something refuses
import os
n=0
try:
    for i in range(100000):
        f="/tmp/q%d"%i; open(f,"w").close()
        for k in range(40):
            os.setxattr(f,"user.k%d"%k,b"x"*60000); n+=60000
except OSError as e: print(e)
print("MiB in xattrs",n>>20)
