# swap.py DIR TARGET SECONDS: makes DIR a directory, a link to TARGET, and TARGET's neighbour, as fast as it can
import os,sys,time,ctypes
d,t,s=sys.argv[1],sys.argv[2],float(sys.argv[3]); l=ctypes.CDLL(None)
os.makedirs(d,exist_ok=True); link=d+".l"
try: os.unlink(link)
except OSError: pass
os.symlink(t,link); end=time.time()+s
while time.time()<end: l.renameat2(-100,d.encode(),-100,link.encode(),2)
