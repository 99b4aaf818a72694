package controllers

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition returns a condition of a type. It truncates the message to the length that the API allows.
func Condition(of string, is bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	const longest = 32 << 10
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest-len("…")], "") + "…"
	}
	return metav1.Condition{Type: of, Status: status, Reason: reason, Message: message}
}
