# kill -9 `berm run` at random moments, then look for what is left 1.5 s later
import subprocess,random,time,sys,os,glob
pre=sys.argv[1:]; n=0
for i in range(60):
    p=subprocess.Popen(pre+["bin/berm","run","--timeout","60s","--","sh","-c","(sleep 61.5 & ) ; sleep 61.5"],stderr=subprocess.DEVNULL,stdout=subprocess.DEVNULL)
    time.sleep(random.random()*0.35); p.kill(); p.wait()
time.sleep(1.5)
left=[]
for d in glob.glob("/proc/[0-9]*"):
    try:
        a=open(d+"/cmdline").read()
        if "61.5" in a: left.append((d,a.replace("\0"," ")[:120]))
        st=open(d+"/status").read()
        if "Uid:\t19000000" in st: left.append((d,a[:80],st.split("Uid:")[1][:30]))
    except OSError: pass
print("left",left)
