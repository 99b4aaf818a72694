// Package apistore implements the engine's interfaces with objects of the API: states are ResourceStates, the
// changes of a plan are PlanChanges and PlanSecrets, values come from Secrets and other objects, and results
// go into finalizers, statuses and connection Secrets.
//
// It reads and writes the API through clients that it is given. It knows no Plan's progress and decides
// nothing.
package apistore

import (
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// FieldManager is the field manager of the infrastructure controllers.
const FieldManager = "atoll-infra"

// maxAttempts is how often a conflicting write is attempted.
const maxAttempts = 8

// redacted removes from an error about a secret object whatever the API server quotes from the object.
func redacted(err error) error {
	if err == nil || !apierrors.IsInvalid(err) {
		return err
	}
	status, is := err.(apierrors.APIStatus)
	if !is || status.Status().Details == nil {
		return fmt.Errorf("the API server rejected it as invalid")
	}
	var fields []string
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field+" ("+string(cause.Type)+")")
	}
	text, _ := json.Marshal(fields)
	return fmt.Errorf("the API server rejected it as invalid: %s", text)
}
