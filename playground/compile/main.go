// Command compile runs the go command and reports how many packages it has compiled, of how many
// that are not in the build cache.
//
//	go run ./playground/compile build -o bin/atoll .
//	go run ./playground/compile list -export -test ./...
//
// Atoll contains Kubernetes, whose first compilation takes minutes. The go command is silent in
// that time, so a newcomer would believe that it hangs. Where everything is cached, compile prints
// nothing. It compiles in a second itself because it imports the standard library alone. The
// environment variable GO names another go command.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// coreTime is the processor time that a package of Kubernetes takes to compile, on average. It was
// measured with 2,280 packages, which took 8 minutes on two cores.
const coreTime = 420 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 2 || os.Args[1] != "build" && os.Args[1] != "list" {
		fmt.Fprintln(os.Stderr, "Usage: compile build|list [flags of the go command] [packages]")
		os.Exit(2)
	}
	err := run(ctx, os.Args[1], os.Args[2:], os.Stderr)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "compile:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, verb string, args []string, out *os.File) error {
	total, err := uncached(ctx, args)
	if err != nil {
		return err
	}
	p := newProgress(out, total, isTerminal(out))
	if total == 0 {
		p = nil // Linking, which remains, takes seconds.
	}
	cmd := command(ctx, verb, append([]string{"-v"}, args...))
	diagnostics, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if verb == "build" {
		cmd.Stdout = os.Stdout
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.begin()
	p.follow(diagnostics, out)
	err = cmd.Wait()
	p.end(err)
	return err
}

// command is a go command that an interrupt ends gracefully, so that it removes its temporary files.
func command(ctx context.Context, verb string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv("GO"), "go"), append([]string{verb}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// uncached counts the packages that the go command would compile, dependencies included.
func uncached(ctx context.Context, args []string) (int, error) {
	cmd := command(ctx, "list", append([]string{"-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}, listArgs(args)...))
	cmd.Stderr = os.Stderr
	listed, err := cmd.Output()
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(listed)) {
		// Test mains are generated for each package and compiled when it is linked.
		if line = strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, ".test") {
			n++
		}
	}
	return n, nil
}

// listArgs are the arguments of go list for the same packages: without the flags that only go build
// has, and without those that have go list compile.
func listArgs(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-o":
			i++
		case slices.Contains([]string{"-export", "-v"}, arg):
		default:
			out = append(out, arg)
		}
	}
	return out
}

// progress prints how far the go command is.
type progress struct {
	out      io.Writer
	total    int
	terminal bool // the line is rewritten in place
	interval time.Duration

	done    int
	started time.Time
	printed time.Time
	now     func() time.Time
}

func newProgress(out io.Writer, total int, terminal bool) *progress {
	p := &progress{out: out, total: total, terminal: terminal, interval: 15 * time.Second, now: time.Now}
	if terminal {
		p.interval = 200 * time.Millisecond
	}
	return p
}

func (p *progress) begin() {
	if p == nil {
		return
	}
	p.started = p.now()
	p.printed = p.started
	fmt.Fprintf(p.out, "compiling %d packages that are not in the build cache%s\n", p.total, p.estimate(runtime.NumCPU()))
}

// estimate is how long that takes, if it takes long enough to mention.
func (p *progress) estimate(cores int) string {
	d := coreTime * time.Duration(p.total) / time.Duration(max(cores, 1))
	switch minutes := int(d.Round(time.Minute).Minutes()); {
	case minutes == 0:
		return ""
	case minutes == 1:
		return fmt.Sprintf(": about a minute on %d cores", cores)
	default:
		return fmt.Sprintf(": about %d minutes on %d cores, the first time", minutes, cores)
	}
}

// follow reads what the go command prints: the import path of each package that it compiles, and
// errors and warnings, which it passes on.
func (p *progress) follow(from io.Reader, diagnostics io.Writer) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !isImportPath(line) {
			p.clear()
			fmt.Fprintln(diagnostics, line)
			continue
		}
		p.compiled()
	}
	// A line that is too long ends the scan. The go command must not block on a full pipe.
	_, _ = io.Copy(diagnostics, from)
}

// isImportPath reports whether a line of the go command is the import path of a package, which
// neither has spaces nor begins like a header or an error.
func isImportPath(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t:#")
}

func (p *progress) compiled() {
	if p == nil {
		return
	}
	p.done++
	if now := p.now(); now.Sub(p.printed) >= p.interval {
		p.printed = now
		p.print()
	}
}

func (p *progress) print() {
	line := fmt.Sprintf("compiled %d of %d packages (%d %%), %s so far", p.done, max(p.total, p.done), p.percent(), p.now().Sub(p.started).Round(time.Second))
	if p.terminal {
		fmt.Fprintf(p.out, "\r\033[K%s", line)
		return
	}
	fmt.Fprintln(p.out, line)
}

func (p *progress) percent() int { return 100 * p.done / max(p.total, p.done, 1) }

// clear makes room on a terminal for a line of the go command.
func (p *progress) clear() {
	if p != nil && p.terminal {
		fmt.Fprint(p.out, "\r\033[K")
	}
}

func (p *progress) end(err error) {
	if p == nil {
		return
	}
	p.clear()
	if err == nil {
		fmt.Fprintf(p.out, "compiled in %s\n", p.now().Sub(p.started).Round(time.Second))
	}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
