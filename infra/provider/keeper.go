//go:build unix

package provider

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// A keeper has started one provider for a server, in a process of its own that does not end with
// the server. What the server asks to be done once only it passes on, and does to the end, whatever
// becomes of who asked. Everything else the server asks the provider itself.
type keeper struct {
	setup   setup
	spawner *spawner
	child   *direct

	ended    chan struct{} // the server wants it to end
	orphaned chan struct{} // there is no server any more

	mu   sync.Mutex
	tell *json.Encoder
}

// socketOfKeeper is the number of the file through which the server speaks.
const socketOfKeeper = 3

// Keep is the whole life of a keeper: the command in Config.Keeper has nothing else to do. It
// speaks to the server through its standard files and one more.
func Keep() error {
	// A server that is gone, or a terminal that wants all to end, is no reason to end. Not ignored but
	// caught, as what is ignored here would be in the provider.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	orders := bufio.NewReader(os.Stdin)
	k := &keeper{tell: json.NewEncoder(os.Stdout), ended: make(chan struct{}), orphaned: make(chan struct{})}
	line, err := orders.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &k.setup)
	}
	if err != nil {
		return errors.New("a keeper of provider calls is started by the server, and not by hand")
	}
	// Before anything is started that would get it, too.
	conn, err := connOf(socketOfKeeper)
	if err != nil {
		return fmt.Errorf("the connection to the server: %w", err)
	}
	return k.run(orders, conn)
}

func (k *keeper) run(orders *bufio.Reader, conn net.Conn) error {
	calls, err := journalAt(k.setup.Journal, k.setup.JournalKey)
	if err != nil {
		return err
	}
	home, err := holdDirectory(k.setup.Launch.Directory)
	if err != nil {
		return fmt.Errorf("the provider's private directory: %w", err)
	}
	defer home.Close()
	output := &tail{also: os.Stderr}
	k.spawner = newSpawner()
	k.child = newDirect(k.spawner, k.setup.Launch, output)
	k.child.runner.started = func(pid int) { k.report(report{PID: pid}) }
	go k.obey(orders)
	p := &process{dir: k.setup.Launch.Directory, child: k.child, drained: make(chan struct{}), mask: newMask(nil), output: output}
	close(p.drained)
	var way *door
	if p.access, err = k.child.connect(); err == nil {
		way, err = k.child.door()
	}
	if err != nil {
		p.stop(0)
		k.report(report{Failed: err.Error(), Exit: k.child.exit()})
		return nil
	}
	r := &relay{conn: p.conn, journal: calls, limit: k.setup.ApplyTimeout, isOrphaned: isInputOver, complaints: os.Stderr}
	server := grpc.NewServer(
		grpc.UnknownServiceHandler(r.handle), grpc.ForceServerCodecV2(rawBytes{}), grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pulse / 2, PermitWithoutStream: true}))
	go func() { _ = server.Serve(&onlyListener{conn: conn, closed: make(chan struct{})}) }()
	k.report(report{Protocol: p.protocol, Door: way})

	select {
	case <-k.child.gone():
		r.close()
		r.wait()
		// Whoever still waits gets its answer, if it takes it.
		over := time.AfterFunc(obedience, server.Stop)
		server.GracefulStop()
		over.Stop()
		p.stop(0)
	case <-k.ended:
		r.close()
		k.child.end()
		r.wait()
		p.stop(0)
	case <-k.orphaned:
		r.close()
		r.wait()
		p.stop(k.setup.StopGrace)
	}
	k.report(report{Exit: k.child.exit()})
	return nil
}

// holdDirectory has the next server leave the provider's directory alone as long as this process
// lives.
func holdDirectory(dir string) (*os.File, error) {
	f, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	if _, err := flock(f, syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (k *keeper) report(said report) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.tell.Encode(said) // to nobody, maybe
}

// obey does what the server says, until there is none.
func (k *keeper) obey(orders *bufio.Reader) {
	for {
		line, err := orders.ReadString('\n')
		if err != nil {
			close(k.orphaned)
			return
		}
		switch line {
		case orderKill + "\n":
			k.child.kill()
		case orderEnd + "\n":
			select {
			case <-k.ended:
			default:
				close(k.ended)
			}
		}
	}
}

// isInputOver tells whether nobody can write to the standard input any more, even if nobody got to read
// its end yet.
func isInputOver() bool {
	input := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(input, 0)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || input[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
		}
	}
}

// An onlyListener gives the one connection that there is.
type onlyListener struct {
	conn   net.Conn
	given  sync.Once
	once   sync.Once
	closed chan struct{}
}

func (l *onlyListener) Accept() (net.Conn, error) {
	var conn net.Conn
	l.given.Do(func() { conn = l.conn })
	if conn != nil {
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *onlyListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *onlyListener) Addr() net.Addr { return l.conn.LocalAddr() }
