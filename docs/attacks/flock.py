import fcntl,sys,time,os
f=os.open(sys.argv[1],os.O_RDONLY); fcntl.flock(f,fcntl.LOCK_EX); print("locked",sys.argv[1],flush=True); time.sleep(float(sys.argv[2]))
