package test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/coordination"
	"github.com/atoll-dev/atoll/playground/child"
)

// What examples/operator says of itself: how long a leader's lease is, and how much
// later another leads.
const (
	leaseDuration = 15 * time.Second
	takeover      = leaseDuration + 2*time.Second
)

var apps = schema.GroupVersionResource{Group: "apps.example.com", Version: "v1", Resource: "apps"}

// The example operator runs in three members, with one leader. One that was
// frozen, and one whose member dies, are followed by another, and nothing that an
// earlier leader still writes is accepted.
func TestTheExampleOperator(t *testing.T) {
	f := whole(t)
	o := installOperator(t, f)
	for _, m := range members {
		o.start(t, m)
	}
	app := "{apiVersion: apps.example.com/v1, kind: App, metadata: {name: shop, namespace: default}, spec: {image: nginx, replicas: 6}}"
	if _, err := f.tryKubectl(t.Context(), "east", app, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	history := o.follow(t)
	o.wantReady(t, map[string]int64{"east": 2, "west": 2, "north": 2})

	t.Run("the leader stops", func(t *testing.T) {
		stopped := o.leader(t)
		since := time.Now()
		o.signal(t, stopped, syscall.SIGTERM)
		<-o.processes[stopped].Done()
		// It releases the lease, so the next leader does not wait for it to expire.
		o.wantSuccessor(t, stopped, since, leaseDuration/2)
		o.start(t, stopped)
	})

	t.Run("the leader freezes", func(t *testing.T) {
		frozen := o.leader(t)
		token := o.token(t)
		o.signal(t, frozen, syscall.SIGSTOP)
		o.wantSuccessor(t, frozen, time.Now(), takeover)
		eventually(t, settle, "the new leader fences the App", func(context.Context) error {
			if o.token(t) == token {
				return errors.New("the App has the frozen leader's token")
			}
			return nil
		})
		// A write that it may have been about to send.
		if err := o.assign(t, frozen, token); !coordination.IsFenced(err) {
			t.Errorf("%s writes with the token of a leadership that is over: %v", frozen, err)
		}
		ended := o.processes[frozen].Done()
		o.signal(t, frozen, syscall.SIGCONT)
		select {
		case <-ended:
		case <-time.After(settle):
			t.Fatal("a former leader that woke up did not end")
		}
		// It may learn of the new lease before it has anything to write.
		log, _ := os.ReadFile(filepath.Join(f.dir, "logs", frozen+"-operator.log"))
		t.Logf("%s itself tried to write and was refused: %t", frozen, strings.Contains(string(log), "fenced off"))
		o.start(t, frozen)
		o.wantReady(t, map[string]int64{"east": 2, "west": 2, "north": 2})
	})

	t.Run("the leader's member dies", func(t *testing.T) {
		dead := o.leader(t)
		o.signal(t, dead, syscall.SIGKILL)
		f.members[dead].Kill()
		o.wantSuccessor(t, dead, time.Now(), takeover)
		want := map[string]int64{"east": 3, "west": 3, "north": 3}
		delete(want, dead)
		o.wantReady(t, want)

		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var err error
		if f.members[dead], err = f.StartMember(ctx, dead); err != nil {
			t.Fatal(err)
		}
		o.start(t, dead)
		o.wantReady(t, map[string]int64{"east": 2, "west": 2, "north": 2})
	})

	// Shared owners are collected together with their dependents in each member.
	f.kubectl(t, "west", "delete", "apps.apps.example.com", "shop")
	f.wantGone(t, "deployment", "shop", members...)
	history.wantOrder(t)
}

// operators are the processes of the example, one for each member.
type operators struct {
	*fixture
	binary    string
	processes map[string]*child.Process
	pids      map[string]int
}

// installOperator builds the example and installs it as its README says, for the
// time of the test.
func installOperator(t *testing.T, f *fixture) *operators {
	t.Helper()
	source := filepath.Join("..", "examples", "operator")
	o := &operators{fixture: f, binary: filepath.Join(f.dir, "operator"), processes: map[string]*child.Process{}, pids: map[string]int{}}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	run("go", "build", "-C", source, "-o", o.binary, ".")
	shared, local := filepath.Join(source, "config", "atoll.yaml"), filepath.Join(source, "config", "member.yaml")
	t.Cleanup(func() {
		for _, process := range o.processes {
			_ = process.Stop()
		}
		remove := func(cluster string, args ...string) {
			if _, err := f.tryKubectl(context.Background(), cluster, "", append([]string{"delete", "--ignore-not-found"}, args...)...); err != nil {
				t.Error(err)
			}
		}
		remove("atoll", "sharedapi", "apps.example.com")
		remove("atoll", "--wait=false", "-f", shared)
		remove("atoll", "crd", "leases.coordination.atoll.dev")
		remove("atoll", "validatingadmissionpolicy,validatingadmissionpolicybinding", "fence.app-operator.leader.lease", "fence.app-operator.leader.objects")
		for _, m := range members {
			remove(m, "--wait=false", "-f", local)
		}
	})
	f.kubectl(t, "atoll", "apply", "-f", shared)
	run(o.binary, "--install", "--kubeconfig", f.Kubeconfig())
	for _, m := range members {
		f.kubectl(t, m, "apply", "-f", local)
		o.writeKubeconfig(t, m)
	}
	f.kubectl(t, "atoll", "wait", "sharedapi/apps.example.com", "--for=condition=Ready", "--timeout=2m")
	return o
}

func (o *operators) operatorKubeconfig(member string) string {
	return filepath.Join(o.dir, member+"-operator.kubeconfig")
}

// writeKubeconfig writes one of the operator's service account in a member, as a
// Pod has it.
func (o *operators) writeKubeconfig(t *testing.T, member string) {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))}}
	token, err := o.client(t, member).CoreV1().ServiceAccounts("app-operator").CreateToken(t.Context(), "app-operator", request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(o.kubeconfig(member))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.Contexts {
		config.AuthInfos[user.AuthInfo] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	if err := clientcmd.WriteToFile(*config, o.operatorKubeconfig(member)); err != nil {
		t.Fatal(err)
	}
}

// start runs the operator in a member.
func (o *operators) start(t *testing.T, member string) {
	t.Helper()
	process, err := child.Start(child.Spec{
		Role: programRole, Name: "operator of " + member, LogFile: filepath.Join(o.dir, "logs", member+"-operator.log"),
		Config: []string{o.binary, "--cluster", member, "--kubeconfig", o.operatorKubeconfig(member)},
	})
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := process.WaitReady(t.Context(), &pid); err != nil {
		t.Fatal(err)
	}
	o.processes[member], o.pids[member] = process, pid
}

func (o *operators) signal(t *testing.T, member string, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(o.pids[member], s); err != nil {
		t.Fatal(err)
	}
}

// lease is the leaders' lease, as Atoll has it: whose, and since when.
func (o *operators) lease(ctx context.Context, t *testing.T) (cluster string, taken time.Time, err error) {
	t.Helper()
	lease, err := o.dynamic(t).Resource(coordination.LeaseResource).Namespace("app-operator").Get(ctx, "leader", metav1.GetOptions{})
	if err != nil {
		return "", taken, err
	}
	holder, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
	acquired, _, _ := unstructured.NestedString(lease.Object, "spec", "acquireTime")
	cluster, _, _ = strings.Cut(holder, "/")
	taken, _ = time.Parse(metav1.RFC3339Micro, acquired)
	return cluster, taken, nil
}

func (o *operators) leader(t *testing.T) string {
	t.Helper()
	cluster, _, err := o.lease(t.Context(), t)
	if err != nil || cluster == "" {
		t.Fatalf("who leads: %q, %v", cluster, err)
	}
	return cluster
}

// wantSuccessor waits for another leader than the one that is gone since then, and
// wants it within the limit.
func (o *operators) wantSuccessor(t *testing.T, gone string, since time.Time, limit time.Duration) {
	t.Helper()
	eventually(t, settle, "another leads than "+gone, func(ctx context.Context) error {
		cluster, taken, err := o.lease(ctx, t)
		if err != nil || cluster == gone || cluster == "" {
			return fmt.Errorf("%q leads (%v)", cluster, err)
		}
		after := taken.Sub(since)
		t.Logf("%s leads %s after %s was gone", cluster, after.Round(time.Millisecond), gone)
		if after > limit {
			t.Errorf("that is later than %s", limit)
		}
		return nil
	})
}

func (o *operators) token(t *testing.T) string {
	t.Helper()
	app, err := o.dynamic(t).Resource(apps).Namespace("default").Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return app.GetAnnotations()[coordination.FenceAnnotation]
}

// assign gives everything to one member, as its operator would in the leadership
// of the token.
func (o *operators) assign(t *testing.T, member, token string) error {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", o.operatorKubeconfig(member))
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	app := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps.example.com/v1", "kind": "App",
		"metadata": map[string]any{"name": "shop", "annotations": map[string]any{coordination.FenceAnnotation: token}},
		"spec":     map[string]any{"assignments": map[string]any{member: int64(6)}},
	}}
	_, err = client.Resource(apps).Namespace("default").Apply(t.Context(), "shop", app, metav1.ApplyOptions{FieldManager: "app-operator-leader", Force: true})
	return err
}

// wantReady waits until each of the members runs so many replicas of the App, and
// each of the others sees that it does.
func (o *operators) wantReady(t *testing.T, want map[string]int64) {
	t.Helper()
	eventually(t, settle, fmt.Sprintf("shop runs as %v", want), func(ctx context.Context) error {
		for m, replicas := range want {
			d, err := o.client(t, m).AppsV1().Deployments("default").Get(ctx, "shop", metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("%s: %w", m, err)
			}
			if err := rolledOut(d, int32(replicas)); err != nil {
				return fmt.Errorf("%s: %w", m, err)
			}
			client, err := dynamic.NewForConfig(o.rest(t, m))
			if err != nil {
				return err
			}
			app, err := client.Resource(apps).Namespace("default").Get(ctx, "shop", metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("%s: %w", m, err)
			}
			assigned, _, _ := unstructured.NestedMap(app.Object, "spec", "assignments")
			got := map[string]int64{}
			for name := range assigned {
				got[name], _, _ = unstructured.NestedInt64(app.Object, "status", "clusters", name, "ready")
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("seen in %s: %v of %v", m, app.Object["status"], assigned)
			}
		}
		return nil
	})
}

// history is every token that the App ever had, in order.
type history struct {
	mu     sync.Mutex
	tokens []string
}

// follow writes down the App's history from now on.
func (o *operators) follow(t *testing.T) *history {
	t.Helper()
	h := &history{}
	client := o.rest(t, "atoll")
	client.Timeout = 0
	all, err := dynamic.NewForConfig(client)
	if err != nil {
		t.Fatal(err)
	}
	events, err := all.Resource(apps).Namespace("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			if app, ok := event.Object.(*unstructured.Unstructured); ok {
				h.mu.Lock()
				h.tokens = append(h.tokens, app.GetAnnotations()[coordination.FenceAnnotation])
				h.mu.Unlock()
			}
		}
	}()
	return h
}

// wantOrder checks that no leadership wrote after a later one had.
func (h *history) wantOrder(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	leaderships, last := 0, int32(-1)
	for _, s := range h.tokens {
		if s == "" {
			continue // not divided yet
		}
		token, err := coordination.ParseToken(s)
		if err != nil || token.Transitions < last {
			t.Errorf("token %s after leadership %d (%v)", s, last, err)
		}
		if token.Transitions != last {
			leaderships, last = leaderships+1, token.Transitions
		}
	}
	if leaderships < 3 {
		t.Errorf("only %d leaderships wrote: %v", leaderships, h.tokens)
	}
}

// programRole runs another program, which ends with this one.
const programRole = "program"

func program(ctx context.Context, link *child.Link) error {
	var command []string
	if err := link.Config(&command); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := link.Ready(cmd.Process.Pid); err != nil {
		return err
	}
	return cmd.Wait()
}
