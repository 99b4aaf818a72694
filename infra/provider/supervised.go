//go:build unix

package provider

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
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// A setup is what a keeper reads first from its standard input. The journal's key is in it, and secrets are
// among the provider's variables, which is why they are no arguments.
type setup struct {
	Launch       launch
	Journal      string
	JournalKey   []byte
	StopGrace    time.Duration
	ApplyTimeout time.Duration
}

// What a keeper reads afterwards, a line each. The end of its input is the end of its server.
const (
	orderEnd  = "end"
	orderKill = "kill"
)

// A report is what a keeper says on its standard output, a line each.
type report struct {
	// PID is the provider's, once it is started.
	PID int `json:",omitempty"`
	// Protocol is its version, and Door the way in, once it can be spoken to.
	Protocol int   `json:",omitempty"`
	Door     *door `json:",omitempty"`
	// Failed is why it cannot be.
	Failed string `json:",omitempty"`
	// Exit is how it ended. It is the last that is said.
	Exit string `json:",omitempty"`
}

const (
	// obedience is how long a keeper has to do what it was told before it is killed itself.
	obedience = time.Second
	// politeness is how long go-plugin waits for a provider that was asked to exit.
	politeness = 2 * time.Second
	// pulse is after how long of silence the connection to a keeper is tried, and pulseLost after
	// how long without an answer it is given up.
	pulse, pulseLost = 30 * time.Second, 20 * time.Second
)

// A kept is a provider that is run by a keeper.
type kept struct {
	runner *runner // of the keeper
	setup  setup
	output io.Writer
	access access
	ready  chan report
	over   chan struct{} // closed when nothing is left, and all was read; or it was left
	left   chan struct{} // closed when it was left

	mu     sync.Mutex
	orders *os.File
	pid    int // of the provider
	said   string
}

var _ child = (*kept)(nil)

func newKept(s *spawner, command []string, of setup, output io.Writer) *kept {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{} // all that it needs to know it is told
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &kept{
		runner: newRunner(s, cmd), setup: of, output: output,
		ready: make(chan report, 1), over: make(chan struct{}), left: make(chan struct{}),
	}
}

// connect starts the keeper, which starts the provider.
func (k *kept) connect() (access, error) {
	line, err := json.Marshal(k.setup)
	if err != nil {
		return access{}, err
	}
	conn, err := k.start()
	if err != nil {
		return access{}, fmt.Errorf("its keeper: %w", err)
	}
	if k.access.once, err = speakThrough(conn); err != nil {
		conn.Close()
		return access{}, err
	}
	if _, err := k.orders.Write(append(line, '\n')); err != nil && !errors.Is(err, syscall.EPIPE) {
		return access{}, fmt.Errorf("its keeper cannot be spoken to: %w", err)
	}
	select {
	case said := <-k.ready:
		if said.Failed != "" {
			return access{}, errors.New(said.Failed)
		}
		k.access.protocol = said.Protocol
		k.access.conn, err = said.Door.open(k.setup.Launch.Directory)
		if err == nil {
			err = k.awaitKeeper()
		}
		return k.access, err
	case <-k.over:
		return access{}, errors.New("its keeper ended before it began")
	}
}

// speakThrough makes a client of the one connection that there is. It must not be closed for
// idleness: there is no other.
func speakThrough(conn net.Conn) (*grpc.ClientConn, error) {
	var open sync.Once
	dial := func(context.Context, string) (net.Conn, error) {
		err := errors.New("the connection to its keeper broke")
		open.Do(func() { err = nil })
		return conn, err
	}
	return grpc.NewClient("passthrough:///keeper", grpc.WithContextDialer(dial), grpc.WithIdleTimeout(0),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // two ends of a socket that has no name
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestAnswer)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pulse, Timeout: pulseLost}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry())
}

// awaitKeeper waits until the connection to the keeper stands.
func (k *kept) awaitKeeper() error {
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

// start starts the process, with its ends of what connects us.
func (k *kept) start() (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	input, orders, err := os.Pipe()
	if err != nil {
		ours.Close()
		return nil, err
	}
	defer input.Close()
	k.runner.cmd.Stdin, k.runner.cmd.ExtraFiles = input, []*os.File{theirs}
	k.mu.Lock()
	k.orders = orders
	k.mu.Unlock()
	if err := k.runner.Start(context.Background()); err != nil {
		ours.Close()
		return nil, err
	}
	go k.follow()
	return ours, nil
}

// socketPair makes a connection between this process and one that it starts. It has no name, so
// that nobody else can connect.
func socketPair() (net.Conn, *os.File, error) {
	// Both ends are closed in whatever else is started meanwhile.
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

// connOf takes a socket over.
func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	return net.FileConn(f)
}

// follow reads what the keeper says, and what the provider writes, to the end of both.
func (k *kept) follow() {
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(k.output, k.runner.stderr) })
	reading.Go(k.listen)
	select {
	case <-k.runner.done:
		reading.Wait()
	case <-k.left:
	}
	k.runner.stdout.Close()
	k.runner.stderr.Close()
	close(k.over)
}

func (k *kept) listen() {
	reports := json.NewDecoder(bufio.NewReader(k.runner.stdout))
	for {
		var said report
		if reports.Decode(&said) != nil {
			return
		}
		k.mu.Lock()
		k.pid = max(k.pid, said.PID)
		if said.Exit != "" {
			k.said = said.Exit
		}
		k.mu.Unlock()
		if said.Protocol != 0 || said.Failed != "" {
			select {
			case k.ready <- said:
			default:
			}
		}
	}
}

func (k *kept) gone() <-chan struct{} { return k.over }

func (k *kept) exit() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.said != "" {
		return k.said
	}
	if state := k.runner.exit(); state != "" && k.pid != 0 {
		return "with its keeper: " + state
	}
	return ""
}

// order tells the keeper what to do. One that is frozen is not waited for.
func (k *kept) order(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.orders == nil {
		return
	}
	_ = k.orders.SetWriteDeadline(time.Now().Add(obedience))
	_, _ = k.orders.WriteString(what + "\n")
}

// kill has the keeper kill the provider, and kills both if it does not.
func (k *kept) kill() {
	if k.runner.ID() == "" {
		_ = k.runner.Kill(context.Background()) // it will not be started
		return
	}
	go func() {
		k.order(orderKill)
		if !k.isOverWithin(obedience) {
			k.killBoth()
		}
	}()
}

func (k *kept) isOverWithin(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-k.over:
		return true
	case <-timer.C:
		return false
	}
}

// killBoth kills the keeper, with which the provider dies, and what the provider started. While
// the keeper lives, a process of its session with the provider's number is the provider.
func (k *kept) killBoth() {
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

// leave has the keeper find itself without a server.
func (k *kept) leave() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.orders == nil || k.pid == 0 {
		return false
	}
	_ = k.orders.Close()
	k.orders = nil
	k.disconnect()
	close(k.left)
	return true
}

func (k *kept) end() {
	if k.runner.ID() != "" {
		k.order(orderEnd)
		if !k.isOverWithin(politeness + obedience) {
			k.killBoth()
		}
		<-k.over
	}
	k.disconnect()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.orders != nil {
		_ = k.orders.Close()
		k.orders = nil
	}
}

func (k *kept) disconnect() {
	for _, conn := range []*grpc.ClientConn{k.access.once, k.access.conn} {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// isCutOff: there is one connection, and no way to make another.
func (k *kept) isCutOff() bool { return k.access.once.GetState() != connectivity.Ready }

// farewell: the keeper waits until the provider's output is read to its end, and so do we.
func (k *kept) farewell() time.Duration { return 3 * afterlife }
