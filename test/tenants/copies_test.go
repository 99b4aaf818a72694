package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-dev/atoll/test/programs"
)

const (
	// copiedObjects are in the workspace that is copied; each has copiedSize bytes.
	copiedObjects = 40
	copiedSize    = 200 << 10
	copies        = 3
)

// TestKilledCopies: a server that is killed in the middle of copies finishes them after its start: each has all objects, and is served only
// when it has.
func TestKilledCopies(t *testing.T) {
	config := newConfig(t)
	server := start(t, config)
	defer func() { server.Kill() }()
	api := &caller{}
	api.use(t, server)
	createAll(t, api, 1)
	text := strings.Repeat("x", copiedSize)
	var group sync.WaitGroup
	for w := range creators {
		group.Go(func() {
			for i := w; i < copiedObjects; i += creators {
				err := api.post(t.Context(), "/clusters/"+name(0)+"/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d"},"data":{"text":%q}}`, i, text))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for i := range copies {
		api.must(t, http.MethodPost, "/apis/tenancy.atoll.dev/v1alpha1/workspaces",
			fmt.Sprintf(`{"apiVersion":"tenancy.atoll.dev/v1alpha1","kind":"Workspace","metadata":{"name":"copy-%d"},"spec":{"source":{"name":%q}}}`, i, name(0)))
	}
	programs.Eventually(t, settle, "the first copy is complete", func(ctx context.Context) error { return complete(ctx, t, api, 0) })
	phases := api.must(t, http.MethodGet, "/apis/tenancy.atoll.dev/v1alpha1/workspaces", "")
	server.Kill()
	<-server.Done()
	t.Logf("%d of %d copies were incomplete", strings.Count(phases, `"phase":"Pending"`), copies)
	server = start(t, config)
	api.use(t, server)
	for i := range copies {
		programs.Eventually(t, settle, fmt.Sprintf("copy %d is complete", i), func(ctx context.Context) error { return complete(ctx, t, api, i) })
	}
}

// complete returns an error if a copy is not served. It fails the test if one is served without all objects.
func complete(ctx context.Context, t *testing.T, api *caller, i int) error {
	t.Helper()
	list, err := api.configMaps(ctx, fmt.Sprintf("copy-%d", i))
	if err != nil {
		if !strings.Contains(err.Error(), "503") && ctx.Err() == nil {
			t.Errorf("a copy that is not complete: %v", err)
		}
		return err
	}
	found := 0
	for _, o := range list.Items {
		if len(o.Data["text"]) == copiedSize {
			found++
		}
	}
	if found != copiedObjects {
		t.Fatalf("copy %d is served with %d objects of %d", i, found, copiedObjects)
	}
	return nil
}

// configMaps returns those of a workspace.
func (c *caller) configMaps(ctx context.Context, workspace string) (*corev1.ConfigMapList, error) {
	client, config := c.present()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/clusters/"+workspace+"/api/v1/namespaces/default/configmaps", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	list := &corev1.ConfigMapList{}
	return list, json.NewDecoder(resp.Body).Decode(list)
}
