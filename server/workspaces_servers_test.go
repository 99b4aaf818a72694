package server_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/playground/pgproxy"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// servers are those of one database.
type servers struct {
	t   *testing.T
	url string
	all []atoll
	// links are their connections to the database.
	links []*pgproxy.Link
	// stops stop them, each once.
	stops []func() error
}

// newServers starts servers of one database, each with another configuration.
func newServers(t *testing.T, n int, configure ...func(*server.Config)) *servers {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	db, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	proxy, err := pgproxy.Start(pgproxy.Config{Server: db.Address()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	s := &servers{t: t, url: db.URL()}
	first := t.TempDir()
	for i := range n {
		name := fmt.Sprintf("server-%d", i)
		url, err := proxy.URL(db.URL(), name)
		if err != nil {
			t.Fatal(err)
		}
		s.links = append(s.links, proxy.Link(name))
		cfg := server.Config{DataDir: first, Datastore: url}
		for _, set := range configure {
			set(&cfg)
		}
		if i > 0 {
			cfg.DataDir, cfg.TokenFile = t.TempDir(), filepath.Join(first, "token")
		}
		one := newServer(t, cfg)
		stop := sync.OnceValue(one.stop)
		t.Cleanup(func() {
			s.links[i].Thaw()
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
		s.all, s.stops = append(s.all, one), append(s.stops, stop)
	}
	return s
}

// in returns a client of a workspace on each server.
func (s *servers) in(name string) (all []*kubernetes.Clientset) {
	s.t.Helper()
	for _, one := range s.all {
		all = append(all, clientOf(s.t, one.workspace(s.t, name)))
	}
	return all
}

// TestWorkspacesOfServers: three servers of one database serve the same workspaces, each soon after the creation on another one, with the same
// objects, controllers, limits, types and copies. A copy is finished by another server when one stops. A workspace that is deleted on one while all write into it is not served by any other, has nothing in the database,
// and nothing of it is in a new one of the same name.
func TestWorkspacesOfServers(t *testing.T) {
	s := newServers(t, 3)
	for i, one := range s.all {
		s.usable(i, one)
	}
	s.finishes("team-0")
	s.all[0].setLimits(t, "team-1", `{"objects": 1}`)
	within(t, 5*time.Second, "all servers obey a limit", func(ctx context.Context) error {
		for i, in := range s.in("team-1") {
			if err := createSome(ctx, in); !apierrors.IsForbidden(err) {
				return fmt.Errorf("create on server %d: %w", i, err)
			}
		}
		return nil
	})
	s.all[1].setLimits(t, "team-1", `null`)
	within(t, 5*time.Second, "no server has a limit", func(ctx context.Context) error {
		for i, in := range s.in("team-1") {
			if err := createSome(ctx, in); err != nil {
				return fmt.Errorf("create on server %d: %w", i, err)
			}
		}
		return nil
	})
	s.typesAndCopies()
	s.deletedWhileWritten("team-0")
	for _, name := range []string{"team-0", "team-1", "team-2", "typed", "copied"} {
		s.all[0].mustKubectl(t, "", "delete", "workspace", name, "--wait=false")
	}
	for _, name := range []string{"team-0", "team-1", "team-2", "typed", "copied"} {
		s.all[0].gone(t, name)
	}
	datastore, err := server.OpenDatastoreReadOnly(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer datastore.Close()
	names, err := datastore.Keyspaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "workspace-") {
			t.Errorf("the database has keyspace %s", name)
		}
	}
	s.stoppedCopy()
}

// usable creates a workspace on one server, and uses it on each.
func (s *servers) usable(i int, one atoll) {
	t := s.t
	name := fmt.Sprintf("team-%d", i)
	one.createWorkspace(t, name)
	created := time.Now()
	for j, in := range s.in(name) {
		eventually(t, fmt.Sprintf("%s is usable on server %d", name, j), func(ctx context.Context) error {
			_, err := in.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("by-%d", j)}}, metav1.CreateOptions{})
			return err
		})
		t.Logf("%s, created on server %d, was usable on server %d after %s", name, i, j, time.Since(created).Round(time.Millisecond))
	}
	for j, in := range s.in(name) {
		for k := range s.all {
			if _, err := in.CoreV1().ConfigMaps("default").Get(t.Context(), fmt.Sprintf("by-%d", k), metav1.GetOptions{}); err != nil {
				t.Errorf("the object of server %d on server %d: %v", k, j, err)
			}
		}
	}
}

// finishes deletes a namespace on each server. One of them runs the controllers.
func (s *servers) finishes(name string) {
	t := s.t
	for i, in := range s.in(name) {
		namespace := fmt.Sprintf("deleted-%d", i)
		if _, err := in.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := in.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, in := range s.in(name) {
		awaitNoNamespace(t, in, fmt.Sprintf("deleted-%d", (i+1)%len(s.all)))
	}
}

// typesAndCopies creates a type and a copy on other servers than those that use them.
func (s *servers) typesAndCopies() {
	t := s.t
	kind := object("WorkspaceType", "small", map[string]any{"namespaces": []any{map[string]any{"name": "shop"}}})
	if _, err := s.all[0].dynamic(t).Resource(tenancy.WorkspaceTypeResource).Create(t.Context(), kind, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another server knows the type", func(ctx context.Context) error {
		_, err := s.all[1].dynamic(t).Resource(tenancy.WorkspaceResource).Create(ctx, object("Workspace", "typed", map[string]any{"type": "small"}), metav1.CreateOptions{})
		return err
	})
	for i, in := range s.in("typed") {
		eventually(t, fmt.Sprintf("server %d has the contents of the type", i), func(ctx context.Context) error {
			_, err := in.CoreV1().Namespaces().Get(ctx, "shop", metav1.GetOptions{})
			return err
		})
	}
	if err := copyWorkspace(t, s.all[2].config(t), "team-2", "copied", nil); err != nil {
		t.Fatal(err)
	}
	for i, in := range s.in("copied") {
		within(t, time.Minute, fmt.Sprintf("server %d serves the copy", i), func(ctx context.Context) error {
			_, err := in.CoreV1().ConfigMaps("default").Get(ctx, "by-1", metav1.GetOptions{})
			return err
		})
	}
}

// writing creates objects on each server until stop is called, which returns the names of the acknowledged ones.
func (s *servers) writing(name, prefix string) (stop func() map[string]bool) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var mu sync.Mutex
	var group sync.WaitGroup
	acknowledged := map[string]bool{}
	for i, in := range s.in(name) {
		for w := range 2 {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					object := fmt.Sprintf("%s-%d-%d-%d", prefix, i, w, n)
					call, done := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
					_, err := in.CoreV1().ConfigMaps("default").Create(call, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: object}}, metav1.CreateOptions{})
					done()
					if err == nil {
						mu.Lock()
						acknowledged[object] = true
						mu.Unlock()
					}
				}
			})
		}
	}
	return func() map[string]bool {
		cancel()
		group.Wait()
		return acknowledged
	}
}

// deletedWhileWritten deletes a workspace while all servers write into it, and creates another one of the same name while they still try.
func (s *servers) deletedWhileWritten(name string) {
	t := s.t
	watch, err := s.in(name)[1].CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	stop := s.writing(name, "former")
	for range 20 { // writes are under way
		<-watch.ResultChan()
	}
	s.all[0].mustKubectl(t, "", "delete", "workspace", name, "--wait=false")
	for range watch.ResultChan() { // it ends
	}
	s.all[0].gone(t, name)
	within(t, 5*time.Second, "all servers answer 404", func(ctx context.Context) error {
		for i, in := range s.in(name) {
			if _, err := in.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("server %d answers %w", i, err)
			}
		}
		return nil
	})
	former := stop()
	stop = s.writing(name, "new")
	s.all[2].createWorkspace(t, name)
	for i, in := range s.in(name) {
		eventually(t, fmt.Sprintf("the new one is usable on server %d", i), func(ctx context.Context) error { return createSome(ctx, in) })
	}
	acknowledged := stop()
	for i, in := range s.in(name) {
		list, err := in.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		has := map[string]bool{}
		for _, o := range list.Items {
			if has[o.Name] = true; former[o.Name] || strings.HasPrefix(o.Name, "former") {
				t.Errorf("server %d has %s of the deleted workspace", i, o.Name)
			}
		}
		for object := range acknowledged {
			if !has[object] {
				t.Errorf("server %d has lost %s", i, object)
			}
		}
	}
	t.Logf("%d objects in the deleted workspace, %d in the new one", len(former), len(acknowledged))
}

// stoppedCopy stops a server in the middle of copies. Another one finishes them, with all objects.
func (s *servers) stoppedCopy() {
	t := s.t
	source := clientOf(t, s.all[0].createWorkspace(t, "source"))
	const objects, copies = 60, 3
	text := strings.Repeat("x", 100<<10)
	var group sync.WaitGroup
	for w := range 6 {
		group.Go(func() {
			for i := w; i < objects; i += 6 {
				o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)}, Data: map[string]string{"text": text}}
				if _, err := source.CoreV1().ConfigMaps("default").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for i := range copies {
		if err := copyWorkspace(t, s.all[0].config(t), "source", fmt.Sprintf("copy-%d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	within(t, time.Minute, "the first copy is complete", func(ctx context.Context) error {
		_, err := clientOf(t, s.all[0].workspace(t, "copy-0")).CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err := s.stops[0](); err != nil {
		t.Fatal(err)
	}
	incomplete := 0
	for i := range copies {
		in := clientOf(t, s.all[1].workspace(t, fmt.Sprintf("copy-%d", i)))
		if _, err := in.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			if incomplete++; !apierrors.IsServiceUnavailable(err) {
				t.Errorf("an incomplete copy: %v", err)
			}
		}
	}
	t.Logf("%d of %d copies were incomplete", incomplete, copies)
	for i := range copies {
		name := fmt.Sprintf("copy-%d", i)
		for j, one := range s.all[1:] {
			within(t, 2*time.Minute, fmt.Sprintf("server %d serves %s", j+1, name), func(ctx context.Context) error {
				list, err := clientOf(t, one.workspace(t, name)).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
				if err == nil && len(list.Items) != objects+1 { // kube-root-ca.crt
					t.Fatalf("%s has %d objects", name, len(list.Items))
				}
				return err
			})
		}
	}
}
