# huge arguments, environments, mounts; control characters in flags: berm's answers, escaped or not
import subprocess,os
B="bin/berm"
def run(name,args,env=None,pre=[]):
    try:
        r=subprocess.run(pre+[B]+args,capture_output=True,text=True,env=env,timeout=100)
        print(name,r.returncode,repr(r.stdout.strip()[:80]),repr(r.stderr[:220]),flush=True)
    except OSError as e: print(name,"OSError",e)
for n,a in (("one arg 120k",["x"*120000]),("1900 args 1k",["y"*1000]*1900),("60000 args",["z"]*60000)):
    run(n,["run","--","sh","-c","echo $#","sh"]+a)
run("9000 vars",["run"]+sum([["-e","V%d=%s"%(i,"v"*100)] for i in range(9000)],[])+["--","sh","-c","env|wc -l"])
env=dict(os.environ); env["BIG"]="b"*130000
run("-e BIG",["run","-e","BIG","--","sh","-c","echo ${#BIG}"],env)
ds=[d for d in sorted(os.listdir("/usr/share/doc")) if os.path.isdir("/usr/share/doc/"+d) and not os.path.islink("/usr/share/doc/"+d)][:300]
b=sum([["--bind-ro","/usr/share/doc/"+d] for d in ds],[])
run("300 binds",["run"]+b+["--","true"]); run("300 binds U",["run"]+b+["--","true"],None,["docs/attacks/U"])
run("200 binds",["run"]+b[:400]+["--","true"])
for s in ("\x1b]0;evil\x07","a\nb","\u202e\u200b","\x9b31m"):
    run("workdir",["run","--workdir","/tmp/"+s,"--","true"]); run("cmd",["run","--",s])
    run("env",["run","-e",s+"=1","--","true"]); run("flag",["run","--"+s,"--","true"]); run("sub",[s])
    run("json",["run","--json","--workdir","/tmp/"+s,"--","true"])
    run("config",["config","check","/tmp/"+s]); run("require",["run","--require",s,"--","true"]); run("mem",["run","--memory",s,"--","true"])
