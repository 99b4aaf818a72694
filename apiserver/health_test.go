package apiserver

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestHealthReasons: only administrators get the reason of a failed check, and the status stays.
func TestHealthReasons(t *testing.T) {
	contact := &reachability{}
	contact.full.Store(true)
	h := &healthCheck{space: &spaceCheck{contact: contact}, types: newOwnTypes([]schema.GroupVersionResource{{Group: "example.com", Version: "v1", Resource: "widgets"}})}
	reason := "the database is behind"
	h.reason.Store(&reason)
	page := h.explain(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "[+]ping ok\n[-]keyspace failed: reason withheld\n[-]own-types failed: reason withheld\n[-]disk-space failed: reason withheld\nreadyz check failed", http.StatusInternalServerError)
	}))
	for _, tc := range []struct {
		path, group string
		told        bool
	}{
		{"/readyz", user.SystemPrivilegedGroup, true},
		{"/healthz", user.SystemPrivilegedGroup, true},
		{"/readyz", "system:authenticated", false},
		{"/readyz", "", false},
		{"/api", user.SystemPrivilegedGroup, false},
	} {
		r := httptest.NewRequest(http.MethodGet, tc.path+"?verbose", nil)
		if tc.group != "" {
			r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "u", Groups: []string{tc.group}}))
		}
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		body := w.Body.String()
		if w.Code != http.StatusInternalServerError || !strings.Contains(body, "[+]ping ok") || strings.Contains(body, reason) != tc.told || strings.Contains(body, "widgets.example.com not served yet") != tc.told || strings.Contains(body, noSpace().ErrStatus.Message) != tc.told {
			t.Errorf("%s for %q: %d %s", tc.path, tc.group, w.Code, body)
		}
	}
}
