package child_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/child"
)

func TestMain(m *testing.M) {
	child.Main(map[string]child.Role{
		"echo": echo,
		"fail": func(context.Context, *child.Link) error { return errors.New("no luck today") },
		// A role that is started by name, without a link.
		"copy": func(_ context.Context, link *child.Link) error {
			if err := link.Config(&struct{}{}); err == nil {
				return errors.New("a role without a link has a configuration")
			}
			_, err := io.Copy(os.Stdout, os.Stdin)
			return err
		},
		// The parent in the middle: it starts an echo and reports its process id.
		"parent": parent,
	})
	os.Exit(m.Run())
}

type greeting struct {
	Text, Dir string
	PID       int
}

func echo(ctx context.Context, link *child.Link) error {
	var g greeting
	if err := link.Config(&g); err != nil {
		return err
	}
	os.Stdout.WriteString("noise that must not disturb the messages\n")
	link.Progress("thinking")
	g.PID = os.Getpid()
	if err := link.Ready(g); err != nil {
		return err
	}
	<-ctx.Done()
	if g.Dir != "" {
		return os.WriteFile(filepath.Join(g.Dir, "stopped"), nil, 0o600)
	}
	return nil
}

func parent(ctx context.Context, link *child.Link) error {
	var g greeting
	if err := link.Config(&g); err != nil {
		return err
	}
	p, err := child.Start(child.Spec{Role: "echo", Name: "grandchild", Config: g, LogFile: filepath.Join(g.Dir, "grandchild.log")})
	if err != nil {
		return err
	}
	var reply greeting
	if err := p.WaitReady(ctx, &reply); err != nil {
		return err
	}
	if err := link.Ready(reply); err != nil {
		return err
	}
	<-ctx.Done()
	return p.Stop()
}

// TestNamed: a program whose only argument is the name of a role runs that role with its own standard files.
func TestNamed(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "copy")
	cmd.Env = []string{}
	cmd.Stdin = strings.NewReader("unchanged")
	if out, err := cmd.Output(); err != nil || string(out) != "unchanged" {
		t.Errorf("%q, %v", out, err)
	}
	cmd = exec.Command(self, "fail")
	cmd.Env = []string{}
	if out, err := cmd.CombinedOutput(); err == nil || string(out) != "fatal: no luck today\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func start(t *testing.T, role string, g greeting, progress func(string)) *child.Process {
	t.Helper()
	p, err := child.Start(child.Spec{
		Role: role, Name: role, Config: g, Progress: progress,
		LogFile: filepath.Join(t.TempDir(), "logs", role+".log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestReadyAndStop(t *testing.T) {
	var steps []string
	p := start(t, "echo", greeting{Text: "hello"}, func(s string) { steps = append(steps, s) })
	var reply greeting
	if err := p.WaitReady(t.Context(), &reply); err != nil {
		t.Fatal(err)
	}
	if reply.Text != "hello" || reply.PID != p.PID() {
		t.Errorf("reply %+v from process %d", reply, p.PID())
	}
	if err := p.Err(); err != nil {
		t.Errorf("error of a running process: %v", err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if len(steps) != 1 || steps[0] != "thinking" {
		t.Errorf("progress %q", steps)
	}
}

func TestFailureNamesReasonAndLog(t *testing.T) {
	p := start(t, "fail", greeting{}, nil)
	err := p.WaitReady(t.Context(), &greeting{})
	if err == nil || !strings.Contains(err.Error(), "no luck today") || !strings.Contains(err.Error(), "fail.log") {
		t.Errorf("error %v does not name the reason and the log file", err)
	}
}

func TestUnknownRole(t *testing.T) {
	p := start(t, "missing", greeting{}, nil)
	if err := p.WaitReady(t.Context(), &greeting{}); err == nil || !strings.Contains(err.Error(), `no role "missing"`) {
		t.Errorf("error %v", err)
	}
}

func TestKillIsReported(t *testing.T) {
	p := start(t, "echo", greeting{}, nil)
	if err := p.WaitReady(t.Context(), &greeting{}); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("error %v", err)
	}
}

// TestChildrenDoNotOutliveAKilledParent: a killed parent cannot stop its children, so they must
// notice by themselves.
func TestChildrenDoNotOutliveAKilledParent(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "parent", greeting{Dir: dir}, nil)
	if err := p.WaitReady(t.Context(), &greeting{}); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		if _, err := os.Stat(filepath.Join(dir, "stopped")); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal("the grandchild is still running")
		case <-tick.C:
		}
	}
}
