package imports

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func joined(name, digest string, ready metav1.ConditionStatus) *v1alpha1.Cluster {
	c := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: ready}}
	c.Status.Types = &v1alpha1.ObservedTypes{Digest: digest}
	return c
}

// TestPreviewReadsOneMemberPerDigest: of the members with the same types digest, one is read.
func TestPreviewReadsOneMemberPerDigest(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/openapi/v3" {
			fmt.Fprint(w, `{"paths":{"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=A"}}}`)
			return
		}
		fmt.Fprint(w, deployments("replicas"))
	}))
	t.Cleanup(server.Close)
	var mu sync.Mutex
	var read []string
	reach := func(_ context.Context, name string) (*rest.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		read = append(read, name)
		if strings.HasPrefix(name, "dead") {
			return nil, errors.New("no connection")
		}
		return &rest.Config{Host: server.URL}, nil
	}
	pulls := joined("pulls", "B", metav1.ConditionTrue)
	pulls.Spec.Mode = v1alpha1.ModePull
	f := NewFields()
	unread := f.ReadMembers(t.Context(), []*v1alpha1.Cluster{joined("dead", "A", metav1.ConditionTrue), joined("east", "A", metav1.ConditionTrue),
		joined("west", "A", metav1.ConditionTrue), joined("asleep", "A", metav1.ConditionFalse), joined("dead-too", "", metav1.ConditionTrue),
		joined("gone", "C", metav1.ConditionFalse), pulls}, reach)
	slices.Sort(read)
	if want := []string{"dead", "dead-too", "east"}; !slices.Equal(read, want) {
		t.Errorf("read %v, want %v", read, want)
	}
	if len(unread) != 1 || unread["dead-too"] == nil {
		t.Errorf("not read: %v", unread)
	}
	gaps := f.Gaps(deployment(map[string]any{"replicas": int64(1), "rollback": int64(1)}))
	for _, name := range []string{"dead", "east", "west", "asleep"} {
		if gap := gaps[name]; gap == nil || !slices.Equal(gap.Fields, []string{".spec.rollback"}) {
			t.Errorf("%s lacks %+v", name, gap)
		}
	}
	if len(gaps) != 4 {
		t.Errorf("gaps: %v", gaps)
	}
}
