//go:build unix

package plugin

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

// A keeper runs one provider for a server, in a process of its own that survives the server. It
// forwards named calls and completes them even if the server is gone. The server makes all other
// calls directly at the provider.
type keeper struct {
	setup   setup
	spawner *spawner
	child   *direct

	ended    chan struct{} // the server asked it to end
	orphaned chan struct{} // the server is gone

	mu      sync.Mutex
	reports *json.Encoder
}

// keeperSocketFD is the file descriptor of the connection to the server.
const keeperSocketFD = 3

// Keep runs a keeper until it ends: the command in Config.Keeper does nothing else. It communicates
// with the server through its standard files and one more.
func Keep() error {
	// The end of the server, or of a terminal session, must not end the keeper. The signals are
	// caught and not ignored, because the provider would inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	commands := bufio.NewReader(os.Stdin)
	k := &keeper{reports: json.NewEncoder(os.Stdout), ended: make(chan struct{}), orphaned: make(chan struct{})}
	line, err := commands.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &k.setup)
	}
	if err != nil {
		return errors.New("this command is started by the Atoll server; do not run it by hand")
	}
	// Before anything is started that would inherit the descriptor.
	conn, err := connOf(keeperSocketFD)
	if err != nil {
		return fmt.Errorf("connecting to the server: %w", err)
	}
	return k.run(commands, conn)
}

func (k *keeper) run(commands *bufio.Reader, conn net.Conn) error {
	calls, err := journalAt(k.setup.Journal, k.setup.JournalKey)
	if err != nil {
		return err
	}
	home, err := holdDirectory(k.setup.Launch.Directory)
	if err != nil {
		return fmt.Errorf("locking the provider's private directory: %w", err)
	}
	defer home.Close()
	output := &tail{tee: os.Stderr}
	k.spawner = newSpawner()
	k.child = newDirect(k.spawner, k.setup.Launch, output)
	k.child.runner.started = func(pid int) { k.report(report{PID: pid}) }
	go k.readCommands(commands)
	p := &process{dir: k.setup.Launch.Directory, child: k.child, drained: make(chan struct{}), mask: newMask(nil), output: output}
	close(p.drained)
	var at *endpoint
	if p.access, err = k.child.connect(); err == nil {
		at, err = k.child.endpoint()
	}
	if err != nil {
		p.stop(0)
		k.report(report{Failed: err.Error(), NotContained: errors.Is(err, ErrNotContained), Exit: k.child.exit()})
		return nil
	}
	r := &relay{conn: p.conn, journal: calls, limit: k.setup.ApplyTimeout, isOrphaned: isInputOver, errorLog: os.Stderr}
	server := grpc.NewServer(
		grpc.UnknownServiceHandler(r.handle), grpc.ForceServerCodecV2(rawBytes{}), grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}))
	go func() { _ = server.Serve(&singleConnListener{conn: conn, closed: make(chan struct{})}) }()
	k.report(report{Protocol: p.protocol, Endpoint: at})

	select {
	case <-k.child.gone():
		r.close()
		r.wait()
		// Callers that are still connected get their answers.
		over := time.AfterFunc(killTimeout, server.Stop)
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

// holdDirectory locks the provider's directory, so that the next server does not remove it while
// this process lives.
func holdDirectory(dir string) (*os.File, error) {
	f, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	if _, err := flock(f, syscall.LOCK_EX); err != nil {
		unlock(f)
		return nil, err
	}
	return f, nil
}

func (k *keeper) report(r report) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.reports.Encode(r) // the server may be gone
}

// readCommands executes the server's commands until the server is gone.
func (k *keeper) readCommands(commands *bufio.Reader) {
	for {
		line, err := commands.ReadString('\n')
		if err != nil {
			close(k.orphaned)
			return
		}
		switch line {
		case commandKill + "\n":
			k.child.kill()
		case commandEnd + "\n":
			select {
			case <-k.ended:
			default:
				close(k.ended)
			}
		}
	}
}

// isInputOver reports whether the writing end of the standard input is closed, even if the end of
// the input has not been read yet.
func isInputOver() bool {
	input := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(input, 0)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || input[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
		}
	}
}

// A singleConnListener accepts one existing connection.
type singleConnListener struct {
	conn   net.Conn
	given  sync.Once
	once   sync.Once
	closed chan struct{}
}

func (l *singleConnListener) Accept() (net.Conn, error) {
	var conn net.Conn
	l.given.Do(func() { conn = l.conn })
	if conn != nil {
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *singleConnListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *singleConnListener) Addr() net.Addr { return l.conn.LocalAddr() }
