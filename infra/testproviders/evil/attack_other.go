//go:build !linux

package main

import "errors"

func attack(string) error { return errors.New("attacks are written for Linux") }
