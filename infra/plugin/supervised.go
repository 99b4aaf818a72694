//go:build unix

package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// A setup is the first line on a keeper's standard input. It contains secrets (the journal's key,
// and values in the provider's environment), so it is not passed as arguments.
type setup struct {
	Launch       launch
	Journal      string
	JournalKey   []byte
	StopGrace    time.Duration
	ApplyTimeout time.Duration
}

// Further lines on a keeper's standard input are commands. The end of the input means that the
// server is gone.
const (
	commandEnd  = "end"
	commandKill = "kill"
)

// A report is a line on a keeper's standard output.
type report struct {
	// PID is the provider's process ID, once it has started.
	PID int `json:",omitempty"`
	// Protocol and Endpoint are set once the provider accepts connections.
	Protocol int       `json:",omitempty"`
	Endpoint *endpoint `json:",omitempty"`
	// Failed is the reason why the provider could not be started.
	Failed string `json:",omitempty"`
	// NotContained is set if that reason is that the provider cannot be contained.
	NotContained bool `json:",omitempty"`
	// Exit is how the provider ended. It is in the last report.
	Exit string `json:",omitempty"`
}

// err returns the reason why the provider could not be started.
func (r report) err() error {
	if cause, ok := strings.CutPrefix(r.Failed, ErrNotContained.Error()); ok && r.NotContained {
		return fmt.Errorf("%w%s", ErrNotContained, cause)
	}
	return errors.New(r.Failed)
}

const (
	// killTimeout is the time that a keeper has to readCommands a command before it is killed.
	killTimeout = time.Second
	// exitTimeout is the time that go-plugin waits for a provider that was asked to exit.
	exitTimeout = 2 * time.Second
	// keepaliveTime is the silence after which the connection to a keeper is probed, and
	// keepaliveTimeout the time without an answer after which it is closed.
	keepaliveTime, keepaliveTimeout = 30 * time.Second, 20 * time.Second
)

// A supervised is a provider that a keeper runs.
type supervised struct {
	runner     *runner // of the keeper
	setup      setup
	output     io.Writer
	access     access
	ready      chan report
	over       chan struct{} // closed when all has ended and all output was read, or on handover
	handedOver chan struct{} // closed on handover

	mu       sync.Mutex
	commands *os.File
	pid      int // of the provider
	exited   string
}

var _ child = (*supervised)(nil)

func newSupervised(s *spawner, command []string, of setup, output io.Writer) *supervised {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{} // its input tells it everything
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &supervised{
		runner: newRunner(s, cmd), setup: of, output: output,
		ready: make(chan report, 1), over: make(chan struct{}), handedOver: make(chan struct{}),
	}
}

// connect starts the keeper, which starts the provider.
func (k *supervised) connect() (access, error) {
	line, err := json.Marshal(k.setup)
	if err != nil {
		return access{}, err
	}
	conn, err := k.start()
	if err != nil {
		return access{}, fmt.Errorf("starting its keeper: %w", err)
	}
	if k.access.once, err = newKeeperClient(conn); err != nil {
		conn.Close()
		return access{}, err
	}
	if _, err := k.commands.Write(append(line, '\n')); err != nil && !errors.Is(err, syscall.EPIPE) {
		return access{}, fmt.Errorf("writing to its keeper: %w", err)
	}
	select {
	case r := <-k.ready:
		if r.Failed != "" {
			return access{}, r.err()
		}
		k.access.protocol = r.Protocol
		k.access.conn, err = r.Endpoint.dial(k.setup.Launch.Directory)
		if err == nil {
			err = k.awaitKeeper()
		}
		return k.access, err
	case <-k.over:
		return access{}, errors.New("its keeper exited before the provider was ready")
	}
}

// newKeeperClient returns a client on the given connection. It must not close the connection when
// idle, because there is no other.
func newKeeperClient(conn net.Conn) (*grpc.ClientConn, error) {
	var open sync.Once
	dial := func(context.Context, string) (net.Conn, error) {
		err := errors.New("the connection to its keeper broke")
		open.Do(func() { err = nil })
		return conn, err
	}
	return grpc.NewClient("passthrough:///keeper", grpc.WithContextDialer(dial), grpc.WithIdleTimeout(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // an unnamed socket pair
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry())
}

// awaitKeeper waits until the connection to the keeper is ready.
func (k *supervised) awaitKeeper() error {
	ctx, cancel := context.WithTimeout(context.Background(), k.setup.Launch.StartTimeout)
	defer cancel()
	k.access.once.Connect()
	for {
		switch state := k.access.once.GetState(); state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return errors.New("the connection to its keeper broke")
		default:
			if !k.access.once.WaitForStateChange(ctx, state) {
				return errors.New("its keeper does not answer")
			}
		}
	}
}

// start starts the keeper process and returns our end of the socket.
func (k *supervised) start() (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	input, commands, err := os.Pipe()
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer input.Close()
	k.runner.cmd.Stdin, k.runner.cmd.ExtraFiles = input, []*os.File{theirs}
	k.mu.Lock()
	k.commands = commands
	k.mu.Unlock()
	if err := k.runner.Start(context.Background()); err != nil {
		ours.Close()
		return nil, err
	}
	go k.follow()
	return ours, nil
}

// socketPair creates a connection between this process and one that it starts. The socket has no
// name, so that no one else can connect.
func socketPair() (net.Conn, *os.File, error) {
	// Under ForkLock, so that processes started concurrently inherit neither end.
	syscall.ForkLock.RLock()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(ends[0])
		unix.CloseOnExec(ends[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "keeper")
	conn, err := connOf(ends[0])
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// connOf takes ownership of a socket.
func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	return net.FileConn(f)
}

// follow reads the keeper's reports and the provider's output until both end.
func (k *supervised) follow() {
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(k.output, k.runner.stderr) })
	reading.Go(k.listen)
	select {
	case <-k.runner.done:
		reading.Wait()
	case <-k.handedOver:
	}
	k.runner.stdout.Close()
	k.runner.stderr.Close()
	close(k.over)
}

func (k *supervised) listen() {
	reports := json.NewDecoder(bufio.NewReader(k.runner.stdout))
	for {
		var r report
		if reports.Decode(&r) != nil {
			return
		}
		k.mu.Lock()
		k.pid = max(k.pid, r.PID)
		if r.Exit != "" {
			k.exited = r.Exit
		}
		k.mu.Unlock()
		if r.Protocol != 0 || r.Failed != "" {
			select {
			case k.ready <- r:
			default:
			}
		}
	}
}

func (k *supervised) gone() <-chan struct{} { return k.over }

func (k *supervised) exit() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.exited != "" {
		return k.exited
	}
	if state := k.runner.exit(); state != "" && k.pid != 0 {
		return "with its keeper: " + state
	}
	return ""
}

// command sends the keeper a command. It does not wait for a keeper that is frozen.
func (k *supervised) command(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.commands == nil {
		return
	}
	_ = k.commands.SetWriteDeadline(time.Now().Add(killTimeout))
	_, _ = k.commands.WriteString(what + "\n")
}

// kill makes the keeper kill the provider, and kills both if it does not.
func (k *supervised) kill() {
	if k.runner.ID() == "" {
		_ = k.runner.Kill(context.Background()) // prevents the start
		return
	}
	go func() {
		k.command(commandKill)
		if !k.endsWithin(killTimeout) {
			k.killBoth()
		}
	}()
}

func (k *supervised) endsWithin(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-k.over:
		return true
	case <-timer.C:
		return false
	}
}

// killBoth kills the keeper, with which the provider dies, and the provider's process group. While
// the keeper lives, a process in its session with the provider's PID is the provider.
func (k *supervised) killBoth() {
	k.mu.Lock()
	provider := k.pid
	k.mu.Unlock()
	k.runner.mu.Lock()
	if keeper := k.runner.pid; provider != 0 && !k.runner.reaped {
		if session, err := unix.Getsid(provider); err == nil && session == keeper {
			_ = syscall.Kill(-provider, syscall.SIGKILL)
		}
	}
	k.runner.mu.Unlock()
	_ = k.runner.Kill(context.Background())
}

// handOver disconnects, so that the keeper carries on without a server.
func (k *supervised) handOver() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.commands == nil || k.pid == 0 {
		return false
	}
	_ = k.commands.Close()
	k.commands = nil
	k.disconnect()
	close(k.handedOver)
	return true
}

func (k *supervised) end() {
	if k.runner.ID() != "" {
		k.command(commandEnd)
		if !k.endsWithin(exitTimeout + killTimeout) {
			k.killBoth()
		}
		<-k.over
	}
	k.disconnect()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.commands != nil {
		_ = k.commands.Close()
		k.commands = nil
	}
}

func (k *supervised) disconnect() {
	for _, conn := range []*grpc.ClientConn{k.access.once, k.access.conn} {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// isDisconnected reports a broken connection as permanent, because there is no way to make another.
func (k *supervised) isDisconnected() bool { return k.access.once.GetState() != connectivity.Ready }

// exitDelay: the keeper waits until the provider's output is read to its end, and so do we.
func (k *supervised) exitDelay() time.Duration { return 3 * outputDrainTimeout }
