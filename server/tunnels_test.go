package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/fleet/tunnel"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestTunnels: each server reaches a cluster in mode Pull through the tunnel of its syncer, which one of them has. When the
// credential is replaced, the tunnel is closed. When the server that has it stops, the syncer opens one to the other.
func TestTunnels(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	db, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	var both [2]atoll
	var stops [2]func() error
	first := t.TempDir()
	for i := range both {
		cfg := server.Config{DataDir: first, Datastore: db.URL()}
		if i > 0 {
			cfg.DataDir, cfg.TokenFile = t.TempDir(), filepath.Join(first, "token")
		}
		both[i] = newServer(t, cfg)
		stops[i] = sync.OnceValue(both[i].stop)
		t.Cleanup(func() {
			if err := stops[i](); err != nil {
				t.Error(err)
			}
		})
	}
	shore := fakeapi.New(t, fakeapi.BuiltIns("v1 Pod", "v1 Node", "v1 Event")...)
	shore.Put(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "reef"}})
	holder := both[0]
	if err := join.Pull(t.Context(), holder.config(t), "shore", false, false, nil); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := view.RequestKubeconfig(t.Context(), holder.config(t), "shore", "")
	if err != nil {
		t.Fatal(err)
	}
	running := both[:]
	nodes := func(want string) func(context.Context) error {
		return func(context.Context) error {
			for i, s := range running {
				if out, err := s.kubectl(t, "", "get", "nodes"); err != nil || !strings.Contains(out, want) {
					return fmt.Errorf("server %d: %v: %s", i, err, out)
				}
			}
			return nil
		}
	}
	eventually(t, "without a tunnel, the answer has the reason", nodes("shore are missing: it is in mode Pull, and its syncer has no tunnel to Atoll"))

	remote, err := view.NewRemote(view.RemoteConfig{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var opensAt atomic.Pointer[string]
	joinedAt := holder.config(t).Host
	opensAt.Store(&joinedAt)
	agent := tunnel.Agent{Cluster: "shore", Level: tunnel.Read, Member: shore.Config(), Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{},
		Endpoint: func() tunnel.Endpoint {
			at := tunnel.Endpoint(remote.Connection())
			at.URL = strings.Replace(at.URL, joinedAt, *opensAt.Load(), 1)
			return at
		}}
	go func() { ended <- agent.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	eventually(t, "both servers show its nodes", nodes("shore.reef"))
	lease, err := holder.client(t).CoordinationV1().Leases(v1alpha1.SystemNamespace).Get(t.Context(), v1alpha1.TunnelLease("shore"), metav1.GetOptions{})
	if err != nil || len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].Kind != "Cluster" {
		t.Errorf("the lease is %v, %v", lease, err)
	}

	// Through the tunnel, as far as the syncer passes requests on.
	for _, s := range both {
		if out, err := s.kubectl(t, "", "get", "--raw", "/api/v1/nodes/shore.reef/proxy/healthz"); err == nil || !strings.Contains(out, "set --reach read, and this needs all") {
			t.Errorf("the kubelet of a node: %v %s", err, out)
		}
	}
	for path, want := range map[string]string{"/api/v1/nodes/none.reef/proxy/": `nodes "none.reef" not found`, "/api/v1/namespaces/default/services/web:80/proxy/": `services "web" not found`} {
		if out, err := holder.kubectl(t, "", "get", "--raw", path); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v %s", path, err, out)
		}
	}

	// Users may not use the way between servers, nor open a tunnel, whatever they are allowed.
	for path, want := range map[string]string{v1alpha1.TunnelsPath + "shore": "for other servers", v1alpha1.ViewsPath + "shore/tunnel": "only the syncer of cluster"} {
		if out, err := holder.kubectl(t, "", "get", "--raw", path); err == nil || !strings.Contains(out, want) {
			t.Errorf("an administrator at %s: %v %s", path, err, out)
		}
	}

	// The server that has the tunnel stops. It waits for no syncer, and this one goes to the other server.
	remaining := both[1]
	opensAt.Store(&remaining.config(t).Host)
	if err := stops[0](); err != nil {
		t.Error(err)
	}
	running = both[1:]
	eventually(t, "the other server shows its nodes", nodes("shore.reef"))
	lease, err = remaining.client(t).CoordinationV1().Leases(v1alpha1.SystemNamespace).Get(t.Context(), v1alpha1.TunnelLease("shore"), metav1.GetOptions{})
	if err != nil || lease.Annotations[v1alpha1.TunnelAddressAnnotation] != strings.TrimPrefix(remaining.config(t).Host, "https://") {
		t.Errorf("the lease is %v, %v", lease, err)
	}

	if _, err := view.RequestKubeconfig(t.Context(), remaining.config(t), "shore", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tunnel of the former credential is closed", func(context.Context) error {
		out, err := remaining.kubectl(t, "", "get", "nodes")
		if err == nil && strings.Contains(out, "shore.reef") {
			err = errors.New("the nodes are shown")
		}
		return err
	})
}
