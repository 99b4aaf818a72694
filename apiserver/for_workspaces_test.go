package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TestPeople: users who exist in one workspace alone are no users of another one, whatever credential names them.
func TestPeople(t *testing.T) {
	for name, want := range map[string]bool{
		"alice": true, "system:admin": true, "system:serviceaccount:default:robot": false, "system:bootstrap:abcdef": false, "system:node:one": false, "system:apiexport:apis/databases": false,
	} {
		all := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, true, nil
		})
		if _, got, err := people(all).AuthenticateRequest(httptest.NewRequest("GET", "/clusters/a/api", nil)); got != want || err != nil {
			t.Errorf("%s: accepted: %v, want %v (%v)", name, got, want, err)
		}
	}
}
