package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// credential_process is run by a library that waits for its child itself. The warden reaps everything that it adopts, and must leave this one alone:
// a status that is lost reads as "no credentials", and the final snapshot would stay here. The keys last a moment, so that the program runs again and again.
func TestCredentialProcessUnderTheReaper(t *testing.T) {
	s := newStory(t)
	server := storetest.StartS3(t)
	dir := t.TempDir()
	runs, script := filepath.Join(dir, "runs"), filepath.Join(dir, "credentials.sh")
	program := fmt.Sprintf(`#!/bin/sh
echo run >> %s
sleep 0 &
echo '{"Version":1,"AccessKeyId":"%s","SecretAccessKey":"%s","Expiration":"%s"}'
`, runs, server.Credentials.AccessKeyID, server.Credentials.SecretAccessKey, time.Now().Add(time.Second).UTC().Format(time.RFC3339))
	if err := os.WriteFile(script, []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, []byte("[default]\ncredential_process = "+script+" now\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.store = &demoStore{url: server.StoreURL("test", "p"), stop: func() {}, env: []string{"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_PROFILE=", "AWS_REGION=us-east-1",
		"AWS_CONFIG_FILE=" + config, "AWS_SHARED_CREDENTIALS_FILE=" + filepath.Join(dir, "none"), "AWS_EC2_METADATA_DISABLED=true"}}
	a := s.alone(siteA, "--new-cluster", "--snapshot-schedule", "1s", "--snapshot-jitter", "0s", "--keep-last", "1")
	if _, err := s.t.awaitNth(s.ctx, siteA, "snapshot taken", 5); err != nil {
		t.Fatal(err)
	}
	st := s.status(a)
	out, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(out), "run"); n < 20 || st.Snapshots.Failed != 0 {
		t.Errorf("the program ran %d times, %d snapshots failed (%s); want many runs and no failure", n, st.Snapshots.Failed, st.Snapshots.LastError)
	}
}
