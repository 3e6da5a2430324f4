// exhaust MODE: use up a kernel resource that is not part of a namespace or not counted by the memory cgroup, say how much, and hold it.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <sys/socket.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <linux/aio_abi.h>
#include <sys/timerfd.h>
static int hold = 8;
static void done(const char *what, long n){ printf("%s: %ld, last error %s\n", what, n, strerror(errno)); fflush(stdout); sleep(hold); }
static void tcp(int udp, long maxmb){
  // pairs of loopback sockets whose receive queue nobody reads
  long total=0; static char buf[65536]; int pairs=0;
  int l=socket(AF_INET,SOCK_STREAM,0); struct sockaddr_in a={.sin_family=AF_INET,.sin_addr={htonl(INADDR_LOOPBACK)}}; socklen_t al=sizeof a;
  bind(l,(void*)&a,sizeof a); listen(l,4096); getsockname(l,(void*)&a,&al);
  while(total < maxmb<<20){
    int s, c;
    if(udp){ c=socket(AF_INET,SOCK_DGRAM,0); struct sockaddr_in b={.sin_family=AF_INET,.sin_addr={htonl(INADDR_LOOPBACK)}}; socklen_t bl=sizeof b; bind(c,(void*)&b,sizeof b); getsockname(c,(void*)&b,&bl); s=socket(AF_INET,SOCK_DGRAM,0); connect(s,(void*)&b,bl);} 
    else { s=socket(AF_INET,SOCK_STREAM,0); if(s<0||connect(s,(void*)&a,al)){perror("connect");break;} c=accept(l,0,0); }
    if(s<0||c<0){perror("sock");break;}
    int big=64<<20; setsockopt(c,SOL_SOCKET,SO_RCVBUF,&big,sizeof big); setsockopt(s,SOL_SOCKET,SO_SNDBUF,&big,sizeof big);
    fcntl(s,F_SETFL,O_NONBLOCK); long mine=0;
    for(int i=0;i<(udp?6:2000);i++){ ssize_t n=send(s,buf,udp?32000:sizeof buf,MSG_DONTWAIT); if(n<0) break; total+=n; mine+=n; }
    pairs++; if(mine==0){printf("nothing more goes in\n");break;}
    if(pairs%100==0){ printf("%d pairs %ld MiB\n",pairs,total>>20); fflush(stdout);} 
  }
  printf("%d pairs, ",pairs); done("MiB in sockets", total>>20);
}
static void locks(long files,long per){
  long n=0; for(long f=0;f<files;f++){ char nm[64]; sprintf(nm,"/tmp/l%d.%ld",getpid(),f); int fd=open(nm,O_RDWR|O_CREAT,0600); if(fd<0){perror("open");break;} unlink(nm);
    for(long i=per;i>0;i--){ struct flock fl={.l_type=F_WRLCK,.l_whence=SEEK_SET,.l_start=i*2,.l_len=1}; if(fcntl(fd,F_SETLK,&fl)<0){perror("lock");goto out;} n++; } }
out: done("byte range locks",n);
}
int main(int c,char**v){
  struct rlimit r; getrlimit(RLIMIT_NOFILE,&r); r.rlim_cur=r.rlim_max; setrlimit(RLIMIT_NOFILE,&r);
  char*m=v[1]; if(c>2) hold=atoi(v[2]); long arg=c>3?atol(v[3]):0; long n=0;
  if(!strcmp(m,"tcp")) tcp(0,arg?arg:400);
  else if(!strcmp(m,"udp")) tcp(1,arg?arg:400);
  else if(!strcmp(m,"pty")){ while(n<(arg?arg:5000)&&open("/dev/ptmx",O_RDWR|O_NOCTTY)>=0) n++; done("ptys",n);} 
  else if(!strcmp(m,"aio")){ for(;;){ aio_context_t x=0; if(syscall(SYS_io_setup,4096,&x)<0) break; n++; } done("aio contexts of 4096",n);} 
  else if(!strcmp(m,"aio1")){ for(;n<100000;){ aio_context_t x=0; if(syscall(SYS_io_setup,1,&x)<0) break; n++; } done("aio contexts of 1",n);} 
  else if(!strcmp(m,"inotify")){ while(inotify_init1(0)>=0) n++; done("inotify instances",n);} 
  else if(!strcmp(m,"watches")){ int fd=inotify_init1(0); char nm[64]; for(;n<200000;n++){ sprintf(nm,"/tmp/w%ld",n); int f=open(nm,O_CREAT|O_RDWR,0600); if(f<0)break; close(f); if(inotify_add_watch(fd,nm,IN_OPEN)<0) break;} done("inotify watches",n);} 
  else if(!strcmp(m,"sig")){ sigset_t s; sigemptyset(&s); sigaddset(&s,SIGRTMIN); sigprocmask(SIG_BLOCK,&s,0); union sigval q={0}; while(sigqueue(getpid(),SIGRTMIN,q)==0) n++; done("queued signals",n);} 
  else if(!strcmp(m,"timers")){ struct sigevent e={.sigev_notify=SIGEV_NONE}; timer_t t; while(timer_create(CLOCK_MONOTONIC,&e,&t)==0) n++; done("timers",n);} 
  else if(!strcmp(m,"locks")) locks(arg?arg:20,5000);
  else if(!strcmp(m,"pipepages")){ int p[2]; while(n<4000&&pipe(p)==0){ if(fcntl(p[1],F_SETPIPE_SZ,1<<20)<0) break; n++; } done("pipes of 1 MiB",n);} 
  return 0;
}
