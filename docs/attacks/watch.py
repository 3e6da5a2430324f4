# watch.py SECONDS FILE...: says when others open files of the read-only system (a payload sees what the host runs)
import ctypes,os,sys,select,struct,time
l=ctypes.CDLL(None,use_errno=True); fd=l.inotify_init1(0)
n={}
for f in sys.argv[2:]:
    w=l.inotify_add_watch(fd,f.encode(),0x20|0x1|0x8|0x10) ; n[w]=f
print("watching",n,flush=True)
end=time.time()+float(sys.argv[1])
while time.time()<end:
    r,_,_=select.select([fd],[],[],max(0,end-time.time()))
    if r:
        b=os.read(fd,4096); o=0
        while o<len(b):
            w,m,c,ln=struct.unpack_from("iIII",b,o); print("event",n[w],hex(m),flush=True); o+=16+ln
