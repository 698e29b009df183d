-- The test runs these with and without the allocator; every answer is the same at each run.
CREATE TABLE things AS
  SELECT i, (i * 7919) % 10007 AS k, md5(i::text) AS name, repeat('x', i % 300) AS filling
  FROM generate_series(1, 30000) i;
CREATE INDEX by_name ON things(name text_pattern_ops, k);
CREATE INDEX by_k ON things USING hash (k);
CREATE TABLE documents AS
  SELECT i, jsonb_build_object('n', i, 'list', jsonb_build_array(i % 7, i % 11), 'name', md5(i::text)) AS d
  FROM generate_series(1, 5000) i;
CREATE INDEX by_document ON documents USING gin (d);
ANALYZE;
-- joins and sorts that spill, in parallel workers
SET max_parallel_workers_per_gather = 2;
SELECT count(*), sum(length(a.filling)) FROM things a JOIN things b ON a.k = b.k WHERE a.i < b.i;
SELECT k % 10 AS g, count(*), count(DISTINCT name), max(name) FROM things GROUP BY g ORDER BY g;
SELECT md5(string_agg(name, ',')) FROM (SELECT name FROM things ORDER BY filling, name DESC) s;
SELECT sum(r) FROM (SELECT rank() OVER (PARTITION BY k % 13 ORDER BY name) * i AS r FROM things) s;
-- strings, regular expressions, JSON
SELECT count(*) FROM things WHERE name ~ '^[a-f].*[0-9]{3}.*(ab|cd)+';
SELECT md5(string_agg(regexp_replace(name, '([a-f])([0-9])', '\2<\1>', 'g'), '' ORDER BY i)) FROM things WHERE i < 3000;
SELECT count(*), sum((d->>'n')::int) FROM documents WHERE d @> '{"list": [3]}';
SELECT md5(jsonb_agg(d ORDER BY i)::text) FROM documents;
SELECT length(xmlelement(name a, xmlagg(xmlelement(name b, name) ORDER BY i))::text) FROM things WHERE i < 2000;
-- PL/pgSQL: subtransactions that fail, and a cursor
CREATE FUNCTION failing(n int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE failed int := 0; r record; total int := 0;
BEGIN
  FOR i IN 1..n LOOP
    BEGIN
      PERFORM 1 / (i % 5);
    EXCEPTION WHEN division_by_zero THEN failed := failed + 1;
    END;
  END LOOP;
  FOR r IN SELECT k FROM things ORDER BY i LIMIT 5000 LOOP total := total + r.k % 3; END LOOP;
  RETURN failed * 1000000 + total;
END $$;
SELECT failing(2000);
WITH RECURSIVE n(i, t) AS (SELECT 1, '' UNION ALL SELECT i + 1, t || chr(97 + i % 26) FROM n WHERE i < 1500)
  SELECT md5(string_agg(t, '')) FROM n;
-- large values, and the compiler where there is one
CREATE TABLE large AS SELECT i, repeat(md5(i::text), 40000) AS v FROM generate_series(1, 6) i;
SELECT i, length(v), md5(v) FROM large ORDER BY i;
SET jit_above_cost = 0;
SELECT count(*), sum(k * 3 + length(name)) FROM things WHERE k % 3 = 1 AND name > '7';
UPDATE things SET filling = name || filling WHERE i % 3 = 0;
DELETE FROM things WHERE i % 11 = 0;
VACUUM things;
SELECT count(*), sum(length(filling)) FROM things;
SELECT name FROM things WHERE name LIKE 'abc%' ORDER BY name;
