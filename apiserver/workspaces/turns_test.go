package workspaces

import (
	"net/http"
	"testing"
)

// TestTurns: a request that evaluates expressions waits while others of its workspace take all turns. Requests that evaluate none do not
// wait, and neither do those of another workspace. Each gives its turn back, whatever its end.
func TestTurns(t *testing.T) {
	s := newStage(t, "a", "b")
	for _, path := range []string{"a", "b"} {
		s.want(201, s.as(admin, "POST", "/clusters/"+path+definitionsPath, definition("colour")))
		for resource, body := range policyObjects("validating", "small", `"validations":[{"expression":"object.metadata.name != 'refused'"}]`) {
			s.want(201, s.as(admin, "POST", "/clusters/"+path+registration+"/"+resource, body))
		}
		s.eventually("widgets are served in "+path, func() bool {
			return s.as(admin, "POST", "/clusters/"+path+widgetsPath, widget("first", "red")).code == http.StatusCreated
		})
	}
	const maps = "/api/v1/namespaces/default/configmaps"
	taken := s.awake["a"].turns
	for range cap(taken) {
		taken <- struct{}{}
	}
	answers := make(chan response)
	for url, body := range map[string]string{"/clusters/a" + widgetsPath: widget("second", "red"), "/clusters/a" + maps: `{"metadata":{"name":"map"}}`} {
		go func() { answers <- s.as(admin, "POST", url, body) }()
	}
	s.want(200, s.as(admin, "GET", "/clusters/a"+widgetsPath, ""))
	s.want(201, s.as(admin, "POST", "/clusters/b"+widgetsPath, widget("second", "red")))
	s.want(201, s.as(admin, "POST", "/clusters/b"+maps, `{"metadata":{"name":"map"}}`))
	select {
	case a := <-answers:
		t.Errorf("a request did not wait: %d %s", a.code, a.body)
	default:
	}
	for range cap(taken) {
		<-taken
	}
	s.want(201, <-answers)
	s.want(201, <-answers)

	s.want(422, s.as(admin, "POST", "/clusters/a"+widgetsPath, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"third"},"spec":{"size":"x"}}`))
	s.want(409, s.as(admin, "POST", "/clusters/a"+widgetsPath, widget("first", "red")))
	s.want(200, s.as(admin, "PATCH", "/clusters/a"+widgetsPath+"/first?fieldManager=me&force=true", widget("first", "green")))
	s.want(201, s.as(admin, "POST", "/clusters/a"+widgetsPath+"?dryRun=All", widget("third", "red")))
	s.eventually("the policy is effective", func() bool {
		return s.as(admin, "POST", "/clusters/a"+maps+"?dryRun=All", `{"metadata":{"name":"refused","labels":{"policy":"small"}}}`).code == http.StatusUnprocessableEntity
	})
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+widgetsPath, ""))
	if n := len(taken); n > 0 {
		t.Errorf("%d turns are taken", n)
	}
}
