package kubelets_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/test/programs"
)

// TestInformer: a program that watches pods through Atoll has exactly the pods of the clusters after apps were scaled and
// moved, and clusters were cut off.
func TestInformer(t *testing.T) {
	s := whole(t)
	const namespace = "informer"
	s.namespace(t, namespace)
	apps := []string{"red", "green", "blue"}
	for _, app := range apps {
		s.must(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 3
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: pause, image: "%[2]s"}]
`, app, node.PauseImage), "apply", "-n", namespace, "-f", "-")
	}
	factory := informers.NewSharedInformerFactoryWithOptions(s.client(t, "atoll-2"), 0, informers.WithNamespace(namespace))
	pods := factory.Core().V1().Pods().Informer()
	var added, deleted, broken atomic.Int64
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { added.Add(1) },
		DeleteFunc: func(any) { deleted.Add(1) },
	})
	if err == nil {
		err = pods.SetWatchErrorHandler(func(*cache.Reflector, error) { broken.Add(1) })
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	factory.WaitForCacheSync(ctx.Done())

	var steps int
	for end := time.Now().Add(*duration); time.Now().Before(end); steps++ {
		switch app := apps[rand.IntN(len(apps))]; rand.IntN(5) {
		case 0, 1:
			s.must(t, "", "scale", "deployment/"+app, "-n", namespace, fmt.Sprintf("--replicas=%d", rand.IntN(6)))
		case 2:
			s.must(t, "", "label", "deployment/"+app, "-n", namespace, "--overwrite", "fleet.atoll.dev/cluster="+members[rand.IntN(len(members))])
		case 3:
			s.must(t, "", "label", "deployment/"+app, "-n", namespace, "fleet.atoll.dev/cluster-")
		case 4:
			heal := s.cut(t, members[rand.IntN(len(members))])
			pause(ctx, time.Duration(rand.IntN(10))*time.Second)
			heal()
		}
		pause(ctx, time.Duration(rand.IntN(3000))*time.Millisecond)
	}
	for _, app := range apps {
		s.must(t, "", "scale", "deployment/"+app, "-n", namespace, "--replicas=2")
	}
	programs.Eventually(t, 2*settle, "the program has the pods of all clusters", func(ctx context.Context) error {
		there := map[types.UID]string{}
		for _, cluster := range members {
			list, err := s.kubectl(ctx, cluster, "", "get", "pods", "-n", namespace, "-o", `jsonpath={range .items[*]}{.metadata.uid} {.metadata.name} {.status.phase} {.metadata.deletionTimestamp}{"\n"}{end}`)
			if err != nil {
				return err
			}
			for line := range strings.Lines(list) {
				uid, state, _ := strings.Cut(strings.TrimSpace(line), " ")
				there[types.UID(uid)] = state
			}
		}
		here := map[types.UID]string{}
		for _, obj := range pods.GetStore().List() {
			p := obj.(*corev1.Pod)
			state := p.Name + " " + string(p.Status.Phase)
			if p.DeletionTimestamp != nil {
				state += " " + p.DeletionTimestamp.UTC().Format(time.RFC3339)
			}
			here[p.UID] = state
		}
		running := 0
		for _, state := range there {
			if strings.HasSuffix(state, " Running") {
				running++
			}
		}
		if !maps.Equal(here, there) || running != 2*len(apps) || len(there) != running {
			return fmt.Errorf("the clusters have %v, and the program %v", slices.Sorted(maps.Values(there)), slices.Sorted(maps.Values(here)))
		}
		return nil
	})
	t.Logf("%d steps; %d pods appeared and %d went; the watch was opened again %d times", steps, added.Load(), deleted.Load(), broken.Load())
	if added.Load()-deleted.Load() != int64(len(pods.GetStore().List())) {
		t.Errorf("%d pods appeared, %d went, and %d are there", added.Load(), deleted.Load(), len(pods.GetStore().List()))
	}
	// The list is the same for a new program, by way of any server.
	for _, server := range s.Servers() {
		list, err := s.client(t, server).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 2*len(apps) {
			t.Errorf("%s lists %d pods, error %v", server, len(list.Items), err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// cut drops all packets between a cluster and all others, in both directions, until heal.
func (s *stage) cut(t *testing.T, cluster string) (heal func()) {
	t.Helper()
	rules := func(verb string) {
		for _, rule := range [][]string{{"INPUT", "-i"}, {"OUTPUT", "-o"}, {"FORWARD", "-i"}, {"FORWARD", "-o"}} {
			line := slices.Concat(s.Network(cluster).Wrapper(), []string{"iptables", verb, rule[0], rule[1], "line", "-j", "DROP"})
			if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", strings.Join(line, " "), err, out)
			}
		}
	}
	rules("-I")
	return func() { rules("-D") }
}
