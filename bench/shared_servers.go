package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/playground/atoll"
)

// The API groups of the notes: one that clusters share, and one local to a cluster.
const (
	sharedGroup = "shared.bench.atoll.dev"
	localGroup  = "local.bench.atoll.dev"
)

const notesDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: notes, singular: note, kind: Note, listKind: NoteList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              write: {type: integer}
              data: {type: string}
`

// sharing are the objects that let all users of all members use the shared notes.
var sharing = []struct {
	resource schema.GroupVersionResource
	manifest string
}{
	{schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: notes}
rules:
- {apiGroups: [` + sharedGroup + `], resources: ["*"], verbs: ["*"]}
`},
	{schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: notes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: notes}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "atoll:members"}
`},
	{v1alpha1.SharedAPIResource, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: SharedAPI
metadata: {name: notes}
spec:
  groups: [` + sharedGroup + `]
  clusterSelector: {}
`},
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func create(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, manifest string) error {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		return err
	}
	return eventually(ctx, "create "+resource.Resource+" "+u.GetName(), func(ctx context.Context) error {
		_, err := client.Resource(resource).Create(ctx, u, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// eventually retries until try succeeds or timeLimit has passed.
func eventually(ctx context.Context, what string, try func(context.Context) error) error {
	return within(ctx, timeLimit, what, try)
}

// within retries until try succeeds or a time has passed.
func within(ctx context.Context, limit time.Duration, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-tick.C:
		}
	}
}

// atolls are Atoll servers on one database.
type atolls struct{ servers []*atoll.Server }

// startAtolls starts a server in each of the named members; "" stands for a server outside
// all members.
func startAtolls(ctx context.Context, dir, datastore string, members ...string) (_ *atolls, err error) {
	token := filepath.Join(dir, "token")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(token, []byte(rand.Text()+"\n"), 0o600); err != nil {
		return nil, err
	}
	address, err := outwardAddress()
	if err != nil {
		return nil, err
	}
	a := &atolls{servers: make([]*atoll.Server, len(members))}
	group, starting := errgroup.WithContext(ctx)
	for i, member := range members {
		flags := []string{"--token-file", token, "--member-address", address, "--member-port", "0"}
		if member != "" {
			flags = append(flags, "--cluster", member)
		}
		at := filepath.Join(dir, fmt.Sprintf("atoll-%d", i))
		group.Go(func() (err error) {
			a.servers[i], err = atoll.Start(starting, atoll.Config{Dir: at, LogFile: at + ".log", Datastore: datastore, Flags: flags})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		a.kill()
		return nil, err
	}
	return a, nil
}

// kill kills the servers: their data is not needed, and a graceful shutdown would wait for
// open watches.
func (a *atolls) kill() {
	for _, s := range a.servers {
		if s != nil {
			s.Kill()
		}
	}
}

// share creates the notes' CRD in the workspace and shares it with all members.
func (a *atolls) share(ctx context.Context) error {
	config, err := a.servers[0].REST()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := defineNotes(ctx, client, sharedGroup); err != nil {
		return err
	}
	for _, s := range sharing {
		if err := create(ctx, client, s.resource, s.manifest); err != nil {
			return err
		}
	}
	return nil
}

// memberAddresses returns the servers' addresses for members, in no particular order.
func (a *atolls) memberAddresses(ctx context.Context) (out []string, err error) {
	config, err := a.servers[0].REST()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	err = eventually(ctx, "wait until all servers publish an address for members", func(ctx context.Context) error {
		leases, err := client.CoordinationV1().Leases(v1alpha1.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.MemberEndpointLabel})
		if err != nil {
			return err
		}
		if len(leases.Items) != len(a.servers) {
			return fmt.Errorf("%d of %d servers have", len(leases.Items), len(a.servers))
		}
		out = out[:0]
		for _, l := range leases.Items {
			out = append(out, l.Annotations[v1alpha1.AddressAnnotation])
		}
		return nil
	})
	return out, err
}

// outwardAddress returns an address of this machine that members can reach. Kubernetes
// rejects loopback addresses in a Service.
func outwardAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return network.IP.String(), nil
		}
	}
	return "", errors.New("this machine has only loopback addresses, which members cannot use: add one, for example with `ip link add atoll0 type dummy; ip addr add 192.0.2.1/32 dev atoll0`")
}

func defineNotes(ctx context.Context, client dynamic.Interface, group string) error {
	return create(ctx, client, definitions, strings.ReplaceAll(notesDefinition, "GROUP", group))
}

// waitServed waits until the API server serves the notes.
func (f *apiClient) waitServed(ctx context.Context) error {
	return eventually(ctx, f.title+" serves the notes", func(ctx context.Context) error {
		_, err := f.list(ctx)
		return err
	})
}
