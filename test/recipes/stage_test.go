package recipes_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// stage has the machines of a page: two for servers and one for the load balancer, all on loopback.
type stage struct {
	t        *testing.T
	dir      string // of this test; the commands' working directory is in it
	database *url.URL
	ports    map[string]int

	mu       sync.Mutex
	services map[string]service // running, by machine and name
}

// service is a running unit.
type service interface{ Stop() error }

// The machines that blocks name.
const (
	firstMachine  = "" // a block without a name
	secondMachine = "atoll-2"
	balancer      = "lb"
	drill         = "drill"
)

func newStage(t *testing.T) *stage {
	for _, program := range []string{"psql", "curl", "openssl", "haproxy"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: install it to try the recipes", err)
		}
	}
	s := &stage{t: t, dir: t.TempDir(), ports: map[string]int{}, services: map[string]service{}}
	for _, name := range []string{firstMachine, secondMachine, balancer, drill} {
		s.ports[name] = freePort(t)
	}
	for _, dir := range []string{"work", "bin", "etc/systemd/system", "etc/haproxy", "machine", "machine-" + secondMachine, "backup", "srv"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	db, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Stop() })
	if s.database, err = url.Parse(db.URL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stopAll)
	s.install()
	return s
}

// freePort returns a port below those that the system gives to connections: a server that is restarted finds
// it free again.
func freePort(t *testing.T) int {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// install puts the programs into a directory that comes first in the path.
func (s *stage) install() {
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	socket := filepath.Join(s.dir, "systemd")
	l, err := net.Listen("unix", socket)
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(s.systemctl)}
	go server.Serve(l)
	s.t.Cleanup(func() { server.Close() })
	for name, text := range map[string]string{
		"atoll":     programVariable + `=atoll exec ` + self + ` "$@"`,
		"kubectl":   programVariable + `=kubectl exec ` + self + ` "$@"`,
		"systemctl": `exec curl -sS --fail-with-body --unix-socket ` + socket + ` -H "Machine: $MACHINE" --data-binary "$*" http://systemd/`,
	} {
		if err := os.WriteFile(filepath.Join(s.dir, "bin", name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
}

// replace replaces what differs between the page's machines and this one.
func (s *stage) replace(machine, text string) string {
	in := func(path string) string { return filepath.Join(s.dir, path) }
	address := func(machine string) string { return "127.0.0.1:" + strconv.Itoa(s.ports[machine]) }
	home := "machine"
	if machine == secondMachine {
		home += "-" + secondMachine
	}
	port := s.database.Port()
	return strings.NewReplacer(
		"--bind-address 0.0.0.0", "--bind-address 127.0.0.1 --member-port -1",
		"/usr/local/bin/atoll", in("bin/atoll"),
		"/var/lib/atoll", in(home),
		"/etc/", in("etc")+"/",
		"/backup", in("backup"),
		"/srv/", in("srv")+"/",
		"psql -h db.example.com -U postgres", "psql -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "+port+" -U "+s.database.User.Username()+" -d postgres",
		"db.example.com:5432", "127.0.0.1:"+port,
		"sslmode=verify-full", "sslmode=disable",
		"https://127.0.0.1:6443", "https://"+address(machine),
		"https://atoll.example.com:6443", "https://localhost:"+strconv.Itoa(s.ports[balancer]),
		"bind :6443", "bind "+address(balancer),
		"10.0.0.11:6443", address(firstMachine),
		"10.0.0.12:6443", address(secondMachine),
		"atoll server --data-dir atoll-data", "atoll server --data-dir atoll-data --member-port -1 --secure-port "+strconv.Itoa(s.ports[firstMachine]),
		"--secure-port 7443", "--secure-port "+strconv.Itoa(s.ports[drill]),
	).Replace(text)
}

// run runs blocks in one shell.
func (s *stage) run(all ...block) {
	s.t.Helper()
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	for _, b := range all {
		fmt.Fprintf(&script, "export MACHINE=%s\n", b.machine)
		for _, line := range strings.SplitAfter(s.replace(b.machine, b.text), "\n") {
			// The shell does not exit by itself if a command that must fail succeeds.
			if command, must := strings.CutPrefix(line, "! "); must {
				line = "if " + strings.TrimSpace(command) + "; then echo 'this had to fail' >&2; exit 1; fi\n"
			}
			script.WriteString(line)
		}
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-x", "-c", script.String())
	cmd.Dir = filepath.Join(s.dir, "work")
	password, _ := s.database.User.Password()
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"), "PGPASSWORD="+password, "HOME="+cmd.Dir, "ATOLL_DATASTORE=", "KUBECONFIG=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what a failed script has left behind
	}
	if err != nil {
		s.t.Fatalf("%v\n%s%s", err, out, s.logs())
	}
	s.t.Logf("%s", out)
}

func (s *stage) logs() string {
	var all strings.Builder
	files, _ := filepath.Glob(filepath.Join(s.dir, "*.log"))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil {
			fmt.Fprintf(&all, "\n%s:\n%s", filepath.Base(file), content)
		}
	}
	return all.String()
}

// systemctl carries out a command of the page.
func (s *stage) systemctl(w http.ResponseWriter, r *http.Request) {
	command, err := io.ReadAll(r.Body)
	if err == nil {
		err = s.manage(r.Header.Get("Machine"), strings.Fields(string(command)))
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("systemctl %s: %v", command, err), http.StatusBadRequest)
	}
}

func (s *stage) manage(machine string, args []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var words []string
	for _, arg := range args {
		if arg != "--now" {
			words = append(words, arg)
		}
	}
	if len(words) == 1 && words[0] == "daemon-reload" {
		return nil
	}
	if len(words) != 2 {
		return errors.New("not supported by this test")
	}
	key := machine + "/" + words[1]
	stop, start := false, false
	switch words[0] {
	case "start", "enable":
		start = true
	case "stop", "disable":
		stop = true
	case "restart", "reload-or-restart":
		stop, start = true, true
	default:
		return errors.New("not supported by this test")
	}
	if running := s.services[key]; stop && running != nil {
		if err := running.Stop(); err != nil {
			return err
		}
		delete(s.services, key)
	}
	if !start || s.services[key] != nil {
		return nil
	}
	var started service
	var err error
	if words[1] == "haproxy" {
		started, err = s.startBalancer()
	} else {
		started, err = s.startUnit(machine, words[1])
	}
	if err == nil {
		s.services[key] = started
	}
	return err
}

func (s *stage) stopAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, running := range s.services {
		_ = running.Stop()
	}
}

// startUnit starts what a unit's ExecStart says, with its environment.
func (s *stage) startUnit(machine, name string) (service, error) {
	lines, err := readLines(filepath.Join(s.dir, "etc/systemd/system", name+".service"))
	if err != nil {
		return nil, err
	}
	var wrapper, args []string
	for _, line := range lines {
		if file, ok := strings.CutPrefix(line, "EnvironmentFile="); ok {
			variables, err := readLines(file)
			if err != nil {
				return nil, err
			}
			for _, v := range variables {
				wrapper = append(wrapper, strings.ReplaceAll(v, "'", ""))
			}
		}
		if command, ok := strings.CutPrefix(line, "ExecStart="); ok {
			// The unit is the same on both machines.
			home := filepath.Join(s.dir, "machine")
			if machine == secondMachine {
				command = strings.ReplaceAll(command, home, home+"-"+secondMachine)
			}
			args = strings.Fields(command)[1:]
		}
	}
	if len(args) == 0 {
		return nil, errors.New("the unit has no ExecStart")
	}
	if wrapper != nil {
		wrapper = append([]string{"env"}, wrapper...)
	}
	args = append(args, "--secure-port", strconv.Itoa(s.ports[machine]))
	return atoll.RunWrapped(wrapper, filepath.Join(s.dir, name+"-"+machine+".log"), args...)
}

func readLines(file string) (lines []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	return lines, nil
}

// program is a running program that is not this binary.
type program struct{ *exec.Cmd }

func (p program) Stop() error {
	_ = p.Process.Kill()
	_ = p.Wait()
	return nil
}

func (s *stage) startBalancer() (service, error) {
	file := filepath.Join(s.dir, "etc/haproxy/haproxy.cfg")
	if out, err := exec.Command("haproxy", "-c", "-f", file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	cmd := exec.Command("haproxy", "-db", "-f", file)
	return program{cmd}, cmd.Start()
}

var _ service = (*child.Process)(nil)

// member starts a server that serves as a cluster to join, and writes its kubeconfig for the page.
func (s *stage) member(name string) {
	s.t.Helper()
	dir := filepath.Join(s.dir, "cluster-"+name)
	server, err := atoll.Start(s.t.Context(), atoll.Config{Dir: dir, LogFile: dir + ".log", Flags: []string{"--member-port", "-1"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { server.Stop() })
	content, err := os.ReadFile(server.Kubeconfig)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "work", name+".kubeconfig"), content, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}
