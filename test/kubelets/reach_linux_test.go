package kubelets_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/test/programs"
)

const settle = 2 * time.Minute

// shells runs a pod in each cluster, with a server and a shell that prints each line of its input. at is the API that has them: a server, or a workspace on it.
func (s *stage) shells(t *testing.T, at, namespace string) map[string]string {
	t.Helper()
	pods := map[string]string{}
	for _, cluster := range members {
		s.mustAt(t, at, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, labels: {fleet.atoll.dev/cluster: %[1]s}}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: "%[2]s"}
      - name: shell
        image: %[2]s
        command: [sh, -c, 'echo ready; while true; do while read line; do echo "got $line"; done; sleep 1; done']
        stdin: true
`, cluster, node.Image), "apply", "-n", namespace, "-f", "-")
	}
	for _, cluster := range members {
		s.mustAt(t, at, "", "rollout", "status", "deployment/"+cluster, "-n", namespace, "--timeout=120s")
		programs.Eventually(t, settle, "Atoll shows the pod of "+cluster, func(ctx context.Context) error {
			name, err := s.kubectl(ctx, at, "", "get", "pods", "-n", namespace, "-l", "app="+cluster, "-o", "jsonpath={.items[*].metadata.name}")
			if err == nil && (name == "" || strings.Contains(name, " ")) {
				err = fmt.Errorf("pods %q", name)
			}
			pods[cluster] = name
			return err
		})
	}
	return pods
}

// TestPodsAreReached: logs that follow, a shell at a terminal, attach, cp and port-forward work through each server of Atoll, in
// clusters that Atoll connects to and in one that lets no connection in.
func TestPodsAreReached(t *testing.T) {
	s := whole(t)
	const namespace = "reach"
	s.namespace(t, namespace)
	pods := s.shells(t, "atoll", namespace)
	if err := s.unreachable(island); err != nil {
		t.Fatal(err)
	}
	for _, cluster := range members {
		for _, server := range s.Servers() {
			t.Run(cluster+" by way of "+server, func(t *testing.T) {
				p := &reached{s, server, namespace, pods[cluster], rand.Text()}
				p.all(t)
			})
		}
	}
}

// TestPodsOfPlacedWorkspace: all of this works in a workspace whose objects run in the clusters of the root, with the namespaces of the workspace.
func TestPodsOfPlacedWorkspace(t *testing.T) {
	s := whole(t)
	s.must(t, `{apiVersion: tenancy.atoll.dev/v1alpha1, kind: Workspace, metadata: {name: team}, spec: {placement: {from: Parent}}}`, "create", "-f", "-")
	t.Cleanup(func() {
		if t.Failed() {
			for at, args := range map[string]string{"atoll": "get workspaces,deployments.apps,resourcebindings,events -n team--default -o yaml", "atoll/team": "get deployments.apps,events -o yaml"} {
				out, err := s.kubectl(context.Background(), at, "", strings.Fields(args)...)
				t.Logf("%s: %s: %v\n%s", at, args, err, out)
			}
		}
		if _, err := s.kubectl(context.Background(), "atoll", "", "delete", "workspace", "team", "--timeout=120s"); err != nil {
			t.Error(err)
		}
	})
	s.must(t, "", "wait", "workspace/team", "--for=jsonpath={.status.phase}=Ready", "--timeout=60s")
	pods := s.shells(t, "atoll/team", "default")
	for i, cluster := range members {
		t.Run(cluster, func(t *testing.T) {
			p := &reached{s, s.Servers()[i%servers] + "/team", "default", pods[cluster], rand.Text()}
			p.all(t)
			if out := p.run(t, "describe", "deployment", cluster); !strings.Contains(out, "Placed on "+cluster) {
				t.Errorf("no event of the scheduler in the description:\n%s", out)
			}
		})
	}
}

func (p *reached) all(t *testing.T) {
	p.logs(t)
	p.terminal(t)
	p.attach(t)
	p.copies(t)
	p.forward(t)
}

// reached is a pod, by way of a server.
type reached struct {
	*stage
	server, namespace, pod string
	marker                 string // differs from run to run
}

func (p *reached) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.kubectl(t.Context(), p.server, "", append(args, "-n", p.namespace)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// prints waits until a running command has printed a text.
func prints(t *testing.T, out *output, what, want string) {
	t.Helper()
	programs.Eventually(t, time.Minute, what, func(context.Context) error {
		if !strings.Contains(out.String(), want) {
			return fmt.Errorf("no %q in %q", want, out.String())
		}
		return nil
	})
}

// logs follows a log to which lines are added.
func (p *reached) logs(t *testing.T) {
	_, out := p.running(t, p.server, "logs", "-f", p.pod, "-c", "shell", "-n", p.namespace)
	prints(t, out, "the log begins", "ready")
	for i := range 3 {
		line := fmt.Sprintf("%s-line-%d", p.marker, i)
		if _, err := p.kubectl(t.Context(), p.server, "", "exec", p.pod, "-c", "shell", "-n", p.namespace, "--", "sh", "-c", "echo "+line+" > /proc/1/fd/1"); err != nil {
			t.Fatal(err)
		}
		prints(t, out, "the log goes on", line)
	}
	if last := p.run(t, "logs", p.pod, "-c", "shell", "--tail=1"); last != p.marker+"-line-2" {
		t.Errorf("the last line of the log: %q", last)
	}
}

// terminal types at a shell, key by key, and changes the size of the terminal.
func (p *reached) terminal(t *testing.T) {
	config, err := p.rest(p.server)
	if err != nil {
		t.Fatal(err)
	}
	request := p.client(t, p.server).CoreV1().RESTClient().Get().Namespace(p.namespace).Resource("pods").Name(p.pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "shell", Command: []string{"sh"}, Stdin: true, Stdout: true, TTY: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, request.URL().String())
	if err != nil {
		t.Fatal(err)
	}
	keys, typed := io.Pipe()
	out, ended := &output{}, make(chan error, 1)
	sizes := sizeQueue{make(chan remotecommand.TerminalSize, 1)}
	sizes.next <- remotecommand.TerminalSize{Width: 123, Height: 45}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		ended <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: keys, Stdout: out, Tty: true, TerminalSizeQueue: sizes})
	}()
	// The terminal repeats each key, so the command itself must not contain the text that the test waits for.
	for _, key := range "echo $((6*7))-" + p.marker + "\n" {
		if _, err := typed.Write([]byte(string(key))); err != nil {
			t.Fatal(err)
		}
	}
	prints(t, out, "the shell answers", "42-"+p.marker)
	programs.Eventually(t, time.Minute, "the terminal has the size", func(context.Context) error {
		// The size is a message of its own: it may come after the keys.
		if _, err := typed.Write([]byte("stty size\n")); err != nil {
			return err
		}
		if !strings.Contains(out.String(), "45 123") {
			return fmt.Errorf("no size in %q", out.String())
		}
		return nil
	})
	if _, err := typed.Write([]byte("exit 7\n")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "exit code 7") {
		t.Errorf("the shell ended with %v, want exit code 7", err)
	}
	close(sizes.next)
}

type sizeQueue struct {
	next chan remotecommand.TerminalSize
}

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	size, ok := <-q.next
	if !ok {
		return nil
	}
	return &size
}

// attach writes to the first process of a container, and reads its output.
func (p *reached) attach(t *testing.T) {
	stdin, out := p.running(t, p.server, "attach", "-i", p.pod, "-c", "shell", "-n", p.namespace)
	programs.Eventually(t, time.Minute, "the process answers", func(context.Context) error {
		// Input from before the connection may come later, and more than once.
		if _, err := stdin.Write([]byte(p.marker + "\n")); err != nil {
			return err
		}
		if want := "got " + p.marker; !strings.Contains(out.String(), want) {
			return fmt.Errorf("no %q in %q", want, out.String())
		}
		return nil
	})
}

// copies copies a file into the container and back.
func (p *reached) copies(t *testing.T) {
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	from, back := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "back")
	if err := os.WriteFile(from, content, 0o600); err != nil {
		t.Fatal(err)
	}
	at := p.namespace + "/" + p.pod + ":/tmp/" + p.marker
	p.run(t, "cp", from, at, "-c", "shell")
	p.run(t, "cp", at, back, "-c", "shell")
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes came back of %d, error %v", len(got), len(content), err)
	}
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// forward sends requests to the server of the pod through a port of this machine, several at a time.
func (p *reached) forward(t *testing.T) {
	_, out := p.running(t, p.server, "port-forward", p.pod, ":80", "-n", p.namespace)
	prints(t, out, "the port is open", "Forwarding from 127.0.0.1")
	address := forwarding.FindStringSubmatch(out.String())[1]
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			response, err := client.Get("http://" + address)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			if body, err := io.ReadAll(response.Body); err != nil || strings.TrimSpace(string(body)) != p.pod {
				t.Errorf("the server answers %q, error %v", body, err)
			}
		})
	}
	all.Wait()
}
