import signal,os,sys
signal.pthread_sigmask(signal.SIG_BLOCK,range(1,65)); os.execvp(sys.argv[1],sys.argv[1:])
